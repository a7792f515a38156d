//! A call stack from two sources. The kernel follows frame pointers to the end of the stack, but
//! skips the caller of a function that sets up no frame, such as memset. Unwind tables skip no
//! caller, but end at the end of the stack copy.

/// Joins the callers found by tables and the further callers found by frame pointers.
pub(super) fn join(tables: &[u64], pointers: impl Iterator<Item = u64>, into: &mut Vec<u64>) {
    into.clear();
    into.extend_from_slice(tables);
    let known = tables.len();
    for (at, address) in pointers.enumerate() {
        let is_where_it_was = at == 0 && known > 0;
        if tables.iter().skip(1).any(|it| *it == address) {
            // `tables` contains this frame, and so all frames inside it. The addresses that the
            // loop has added are of frames inside it, so they are removed.
            into.truncate(known);
        } else if !is_where_it_was {
            into.push(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_is_listed_exactly_once() {
        let join = |tables: &[u64], pointers: &[u64]| {
            let mut joined = Vec::new();
            join(tables, pointers.iter().copied(), &mut joined);
            joined
        };
        assert_eq!(join(&[1, 2], &[1, 3, 4]), [1, 2, 3, 4], "a leaf without a frame");
        assert_eq!(join(&[1, 2, 3], &[1, 3, 4]), [1, 2, 3, 4], "and further");
        assert_eq!(join(&[1, 2, 3], &[1, 2, 3, 4]), [1, 2, 3, 4]);
        assert_eq!(join(&[1, 2, 3], &[1, 2]), [1, 2, 3]);
        assert_eq!(join(&[], &[1, 2, 2]), [1, 2, 2], "no tables");
        assert_eq!(join(&[1, 2], &[]), [1, 2]);
        assert_eq!(join(&[1], &[1, 2]), [1, 2]);
    }
}
