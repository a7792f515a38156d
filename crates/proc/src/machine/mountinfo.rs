//! `/proc/<pid>/mountinfo`: which devices are tmpfs, and where control groups are mounted.

use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use pagewise_model::mapping::Device;

use crate::text::{LineCursor, lines};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Mount ID, as in `mnt_id` of `/proc/<pid>/fdinfo`.
    pub id: u64,
    /// Device of the files of the mount.
    pub device: Device,
    /// Folder of the file system that is visible at the mount point.
    pub root: PathBuf,
    /// Mount point.
    pub point: PathBuf,
    /// `tmpfs`, `ext4`, `cgroup2`.
    pub fs: Vec<u8>,
    /// Options of the filesystem: `rw,memory`.
    pub options: Vec<u8>,
}

/// File systems whose files are served by a process or over a network.
const REMOTE: [&[u8]; 9] =
    [b"fuse", b"nfs", b"cifs", b"smb", b"9p", b"ceph", b"afs", b"autofs", b"virtiofs"];

impl Mount {
    /// True if a call on a file of this mount may wait for a process or a network.
    pub fn may_wait(&self) -> bool {
        REMOTE.iter().any(|name| self.fs.starts_with(name))
    }
}

/// Reads a whole `mountinfo`. Malformed lines are left out.
pub fn parse(text: &[u8]) -> Vec<Mount> {
    lines(text).filter_map(|(_, line)| mount(line)).collect()
}

fn mount(line: &[u8]) -> Option<Mount> {
    // 36 35 98:0 /root /point options optional-fields - fs source super-options
    let mut words = line.split(|&b| b == b' ');
    let id = LineCursor::new(words.next()?).decimal()?;
    let device = device(words.nth(1)?)?;
    let (root, point) = (path(words.next()?), path(words.next()?));
    let mut words = words.skip_while(|word| *word != b"-").skip(1);
    let fs = words.next()?.to_vec();
    let options = words.nth(1).unwrap_or_default().to_vec();
    Some(Mount { id, device, root, point, fs, options })
}

fn device(word: &[u8]) -> Option<Device> {
    let mut at = LineCursor::new(word);
    let major = u32::try_from(at.decimal()?).ok()?;
    at.byte(b':')?;
    let minor = u32::try_from(at.decimal()?).ok()?;
    Some(Device { major, minor })
}

/// Decodes the octal escapes in a path, such as `\040` for a blank.
fn path(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&byte, tail)) = rest.split_first() {
        match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if byte == b'\\' => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_with_a_blank_is_one_path() {
        let line = b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - tmpfs none rw,size=4k\n";
        let mounts = parse(line);
        assert_eq!(mounts[0].point, PathBuf::from("/mnt 2"));
        assert_eq!((mounts[0].id, mounts[0].fs.as_slice()), (36, b"tmpfs".as_slice()));
        assert_eq!(mounts[0].options, b"rw,size=4k");
        assert_eq!(mounts[0].device, Device { major: 98, minor: 0 });
    }
}
