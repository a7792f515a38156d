//! Call stacks, each with a number.

use std::collections::HashMap;
use std::rc::Rc;

use crate::spaces::Spaces;
use crate::symbols::Place;

/// The number of a call stack: they count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(pub u32);

impl StackId {
    /// As an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The call stacks that were met. One is resolved to places in files when it is first met: later its process may be gone.
#[derive(Debug, Default)]
pub struct Stacks {
    numbers: HashMap<Rc<[u64]>, StackId>,
    places: Vec<Vec<Place>>,
    /// The program, and then addresses: the one that is looked for.
    key: Vec<u64>,
}

impl Stacks {
    /// The number of a stack: where the program was, then the return addresses of its callers.
    pub fn number(
        &mut self,
        spaces: &Spaces,
        pid: u32,
        addresses: impl Iterator<Item = u64>,
    ) -> StackId {
        self.key.clear();
        self.key.push(spaces.program(pid).into());
        self.key.extend(addresses);
        if let Some(number) = self.numbers.get(self.key.as_slice()) {
            return *number;
        }
        let number = StackId(u32::try_from(self.places.len()).unwrap_or(u32::MAX));
        let places = self.key[1..].iter().zip(0_usize..);
        let places =
            places.map(|(address, depth)| Place::of(spaces, pid, *address, depth > 0)).collect();
        self.places.push(places);
        self.numbers.insert(self.key.as_slice().into(), number);
        number
    }

    /// The places of all, by number.
    pub fn places(&self) -> &[Vec<Place>] {
        &self.places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_has_one_number_and_another_program_has_others() {
        let (mut stacks, mut spaces) = (Stacks::default(), Spaces::default());
        let a = stacks.number(&spaces, 7, [1, 2, 3].into_iter());
        let b = stacks.number(&spaces, 7, [1, 2].into_iter());
        assert_eq!(stacks.number(&spaces, 7, [1, 2, 3].into_iter()), a);
        assert_ne!(a, b);
        spaces.note(&crate::Record::Named { pid: 7, tid: 7, name: b"", exec: true });
        assert_ne!(stacks.number(&spaces, 7, [1, 2].into_iter()), b);
        assert_eq!(stacks.places().len(), 3);
    }
}
