//! Call stacks, each with a number.

use std::collections::HashMap;
use std::rc::Rc;

use crate::files::Files;
use crate::spaces::Spaces;
use crate::symbols::{Place, Symbols};

/// The number of a call stack: they count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(pub u32);

impl StackId {
    /// As an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// How many stacks of addresses are kept: most of them are of programs that have ended.
const KEPT: usize = 1 << 16;

/// The call stacks that were met. One is resolved to places in files, which are opened, when it is
/// first met: later its process may be gone.
/// The same places have the same number in each process, so that memory does not grow with how many processes there are.
#[derive(Debug, Default)]
pub struct Stacks {
    /// By the program and addresses.
    numbers: HashMap<Box<[u64]>, StackId>,
    known: HashMap<Place, Rc<Place>>,
    /// By places, each by where it is kept.
    alike: HashMap<Vec<usize>, StackId>,
    places: Vec<Vec<Rc<Place>>>,
    /// Those of the places.
    files: Files,
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
        let number = self.resolve(spaces, pid);
        if self.numbers.len() >= KEPT {
            self.numbers.clear();
        }
        self.numbers.insert(self.key.as_slice().into(), number);
        number
    }

    /// The number of the stack in `key`, by places.
    fn resolve(&mut self, spaces: &Spaces, pid: u32) -> StackId {
        let Stacks { known, alike, places, files, key, .. } = self;
        // Code without frame pointers leaves anything where they should be: what is no code ends the stack.
        let is_code = |address: &u64| spaces.find(pid, *address).is_some_and(|it| it.execute);
        let addresses = &key[1..];
        let calls = match addresses.first().is_some_and(is_code) {
            true => addresses.iter().position(|address| !is_code(address)),
            false => None,
        };
        let addresses = &addresses[..calls.unwrap_or(addresses.len())];
        let place = |(address, depth): (&u64, usize)| {
            let place = Place::of(spaces, pid, *address, depth > 0);
            Rc::clone(known.entry(place.key()).or_insert_with(|| {
                place.keep(files);
                Rc::new(place)
            }))
        };
        let stack: Vec<Rc<Place>> = addresses.iter().zip(0_usize..).map(place).collect();
        let kept = stack.iter().map(|place| Rc::as_ptr(place).addr()).collect();
        *alike.entry(kept).or_insert_with(|| {
            let number = StackId(u32::try_from(places.len()).unwrap_or(u32::MAX));
            places.push(stack);
            number
        })
    }

    /// What looks up the places, in files that were opened when they were first met.
    pub fn symbols(&self) -> Symbols {
        Symbols::with(self.files.clone())
    }

    /// The places of all, by number.
    pub fn places(&self) -> &[Vec<Rc<Place>>] {
        &self.places
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Mapped};

    #[test]
    fn a_stack_has_one_number_in_all_programs_that_have_it_in_the_same_places() {
        let (mut stacks, mut spaces) = (Stacks::default(), Spaces::default());
        let a = stacks.number(&spaces, 7, [1, 2, 3].into_iter());
        let b = stacks.number(&spaces, 7, [1, 2].into_iter());
        assert_eq!(stacks.number(&spaces, 7, [1, 2, 3].into_iter()), a);
        assert_ne!(a, b);
        spaces.note(&crate::Record::Named { pid: 7, tid: 7, name: b"", exec: true });
        assert_eq!(stacks.number(&spaces, 7, [1, 2].into_iter()), b, "of no file, in one process");
        spaces.note(&crate::Record::Named { pid: 8, tid: 8, name: b"", exec: true });
        assert_ne!(stacks.number(&spaces, 8, [1, 2].into_iter()), b, "of no file, in another");
        assert_eq!(stacks.places().len(), 3);
        let mapped = |pid, start| {
            let access = Access { execute: true, ..Access::default() };
            let name = b"/a";
            let mapped =
                Mapped { pid, start, length: 100, inode: 5, name, access, ..Mapped::default() };
            crate::Record::Mapped(mapped)
        };
        spaces.note(&mapped(7, 1000));
        spaces.note(&mapped(8, 2000));
        let c = stacks.number(&spaces, 7, [1003, 1050].into_iter());
        assert_eq!(stacks.number(&spaces, 8, [2003, 2050].into_iter()), c, "of a file");
        let d = stacks.number(&spaces, 8, [2003, 2050, 5, 2051].into_iter());
        assert_eq!(d, c, "what is no code is no caller");
    }
}
