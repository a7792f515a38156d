//! Reports of small recordings, whose numbers are known.
