//! Equal values of neighbouring mappings, stored once.

use std::collections::VecDeque;
use std::sync::Arc;

/// The values that are compared with the next one. Mappings that alternate, such as stacks and their guard pages, need two.
const MAX_RECENT: usize = 4;

/// The last few different values, the latest first.
#[derive(Debug)]
pub(crate) struct Recent<T> {
    values: VecDeque<Arc<T>>,
}

impl<T> Default for Recent<T> {
    fn default() -> Recent<T> {
        Recent { values: VecDeque::with_capacity(MAX_RECENT) }
    }
}

impl<T: PartialEq> Recent<T> {
    /// Returns the recent value that is equal to `value`, or keeps `value` in place of the oldest one.
    pub(crate) fn share(&mut self, value: T) -> Arc<T> {
        if let Some(same) = self.values.iter().find(|recent| ***recent == value) {
            return Arc::clone(same);
        }
        let value = Arc::new(value);
        self.values.truncate(MAX_RECENT - 1);
        self.values.push_front(Arc::clone(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_while_few_others_lie_between() {
        let mut recent = Recent::default();
        let first = recent.share(0);
        for value in 1..MAX_RECENT {
            let other = recent.share(value);
            assert_eq!(*other, value);
        }
        assert!(Arc::ptr_eq(&first, &recent.share(0)));
        recent.share(MAX_RECENT);
        let again = recent.share(0);
        assert!(!Arc::ptr_eq(&first, &again) && *again == 0);
    }
}
