//! Programs of the host in a guest: busybox, and programs with the libraries that they load.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::elf::{interpreter, is_static_program, without_symbols};
use crate::error::WhileDoing;
use crate::{GuestFile, VmError};

/// A program of the host that is copied to the guest, with its shared libraries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestProgram {
    /// Path on the host.
    pub host: PathBuf,
    /// Path in the guest.
    pub guest: String,
    /// True to copy the program's symbols and debug information too, which take memory of the
    /// guest.
    pub symbols: bool,
}

/// Finds a program in `PATH`.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Finds a static busybox.
pub(crate) fn find_busybox() -> Option<PathBuf> {
    let names = ["busybox", "busybox.static", "busybox-static"];
    let folders = ["/bin", "/usr/bin", "/usr/lib/busybox/bin"].map(PathBuf::from);
    let usual = folders.iter().flat_map(|folder| names.map(|name| folder.join(name)));
    let paths = names.iter().filter_map(|name| find_program(name)).chain(usual);
    let is_static =
        |path: &PathBuf| fs::read(path).is_ok_and(|content| is_static_program(&content));
    paths.into_iter().find(is_static)
}

impl GuestProgram {
    /// A program that is copied without symbols.
    pub fn new(host: &Path, guest: impl Into<String>) -> GuestProgram {
        GuestProgram { host: host.to_owned(), guest: guest.into(), symbols: false }
    }

    /// Reads the program and its libraries as files of the guest.
    ///
    /// # Errors
    /// [`VmError::System`] if a file cannot be read or the loader cannot be run.
    pub(crate) fn files(&self) -> Result<Vec<GuestFile>, VmError> {
        let content = read(&self.host)?;
        let libraries = match interpreter(&content) {
            Some(loader) => libraries(loader, &self.host)?,
            None => Vec::new(),
        };
        let bare = |content| if self.symbols { content } else { without_symbols(content) };
        let mut files = vec![GuestFile::new(self.guest.clone(), 0o755, bare(content))];
        for path in libraries {
            // Libraries keep their symbols, so that tools in the guest can name functions. Other
            // programs of the guest load the same files.
            let content = read(Path::new(&path))?;
            files.push(GuestFile::new(path, 0o755, content));
        }
        Ok(files)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, VmError> {
    fs::read(path).while_doing(format!("cannot read {}", path.display()))
}

/// Returns the paths of the loader and of the libraries of a program, as the loader finds them. The
/// loaders of glibc and musl list them without running the program.
fn libraries(loader: &str, program: &Path) -> Result<Vec<String>, VmError> {
    let listed = Command::new(loader)
        .arg("--list")
        .arg(program)
        .stdin(Stdio::null())
        .output()
        .while_doing(format!("cannot run {loader}, the loader of {}", program.display()))?;
    if !listed.status.success() {
        let words = String::from_utf8_lossy(&listed.stderr).into_owned();
        return Err(VmError::Format(format!("{}: {words}", program.display())));
    }
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut paths = vec![loader.to_owned()];
    paths.extend(text.lines().filter_map(listed_path).filter(|path| path != loader));
    Ok(paths)
}

/// Returns the path in a line such as `libc.so.6 => /lib/libc.so.6 (0x7f..)`.
fn listed_path(line: &str) -> Option<String> {
    let path = line.split_once("=> ").map_or(line, |(_, path)| path).trim();
    let path = path.rsplit_once(" (").map_or(path, |(path, _)| path);
    path.starts_with('/').then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_lists_the_libraries_of_this_program() {
        let own = std::env::current_exe().unwrap();
        let program = GuestProgram { host: own, guest: "/bin/test".to_owned(), symbols: false };
        let files = program.files().unwrap();
        assert_eq!(files[0].path, "/bin/test");
        assert!(files.iter().any(|file| file.path.contains("libc.")), "no C library");
    }

    #[test]
    fn lines_without_a_path_are_left_out() {
        let path = |line| listed_path(line);
        assert_eq!(path("\tlinux-vdso.so.1 (0x7ffd)"), None);
        assert_eq!(path("\tlibc.so.6 => /lib/libc.so.6 (0x1)").as_deref(), Some("/lib/libc.so.6"));
        assert_eq!(path("\t/lib/ld-musl.so.1 (0x1)").as_deref(), Some("/lib/ld-musl.so.1"));
        assert_eq!(path("\tlibx.so => not found"), None);
    }
}
