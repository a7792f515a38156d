//! A call stack from two sources: the kernel follows frame pointers to the end, but skips the
//! caller of a function that sets up no frame, such as memset; unwind tables skip no caller, but
//! end at the end of the stack copy.

/// Callers by tables, then those by frame pointers beyond them.
pub(super) fn join(tables: &[u64], pointers: impl Iterator<Item = u64>, into: &mut Vec<u64>) {
    into.clear();
    into.extend_from_slice(tables);
    let known = tables.len();
    for (at, address) in pointers.enumerate() {
        let is_where_it_was = at == 0 && known > 0;
        if tables.iter().skip(1).any(|it| *it == address) {
            // The frames added before are inner to this one, so `tables` already covers them.
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
