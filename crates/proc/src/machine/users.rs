//! Names of users, from `/etc/passwd`.

use std::collections::HashMap;
use std::path::Path;

use pagewise_model::Name;

use crate::root::read_all;
use crate::text::{lines, number};

/// The names of the users of this machine, without the users of a directory service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users(HashMap<u32, Name>);

impl Users {
    /// Reads `/etc/passwd`; without it no user has a name.
    pub fn read() -> Users {
        read_all(Path::new("/etc/passwd")).map(|text| Users::parse(&text)).unwrap_or_default()
    }

    fn parse(text: &[u8]) -> Users {
        let user = |line: &[u8]| {
            let mut parts = line.split(|&b| b == b':');
            let name = parts.next()?;
            let uid = u32::try_from(number(parts.nth(1)?)?).ok()?;
            Some((uid, Name::new(name)))
        };
        let mut users = HashMap::new();
        for (uid, name) in lines(text).filter_map(|(_, line)| user(line)) {
            // The first line with a user ID determines the name of the user, as in getpwuid(3).
            users.entry(uid).or_insert(name);
        }
        Users(users)
    }

    /// The name of a user.
    pub fn name(&self, uid: u32) -> Option<&Name> {
        self.0.get(&uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_of_an_id_counts() {
        let users = Users::parse(b"root:x:0:0::/root:/bin/sh\ntoor:x:0:0::/:/bin/sh\nbroken\n");
        assert_eq!(users.name(0), Some(&"root".into()));
        assert_eq!(users.name(7), None);
    }
}
