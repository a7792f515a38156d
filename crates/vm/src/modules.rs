//! Kernel modules of a guest, with the modules on which they depend, in the order of loading.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use crate::error::WhileDoing;
use crate::{VmError, VmRequirement};

/// An uncompressed module.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KernelModule {
    pub(crate) name: String,
    pub(crate) content: Vec<u8>,
}

/// File extensions of compressed modules, and the programs that uncompress them.
const UNPACKERS: &[(&str, &str)] = &[("xz", "xz"), ("zst", "zstd"), ("gz", "gzip")];

/// Reads modules and their dependencies. Modules that are missing in the folder are ignored,
/// because most kernels have some of them built in.
///
/// # Errors
/// [`VmError::System`] if a file cannot be read, [`VmError::Missing`] if the program that
/// uncompresses a file is missing.
pub(crate) fn modules(folder: &Path, wanted: &[&str]) -> Result<Vec<KernelModule>, VmError> {
    let mut loader = ModuleLoader {
        files: module_files(&folder.join("kernel")),
        seen: BTreeSet::new(),
        ordered: Vec::new(),
    };
    for name in wanted {
        loader.add(name)?;
    }
    Ok(loader.ordered)
}

struct ModuleLoader {
    files: BTreeMap<String, PathBuf>,
    seen: BTreeSet<String>,
    ordered: Vec<KernelModule>,
}

impl ModuleLoader {
    /// Adds a module after its dependencies.
    fn add(&mut self, name: &str) -> Result<(), VmError> {
        let name = name.replace('-', "_");
        let Some(path) = self.files.get(&name).cloned() else { return Ok(()) };
        if !self.seen.insert(name.clone()) {
            return Ok(());
        }
        let content = unpacked(&path)?;
        for dependency in dependencies(&content) {
            self.add(&dependency)?;
        }
        self.ordered.push(KernelModule { name, content });
        Ok(())
    }
}

/// Finds the files of all modules, by name with `-` replaced by `_`.
fn module_files(folder: &Path) -> BTreeMap<String, PathBuf> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let kind = entry.file_type();
            if kind.is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            } else if let Some(name) = module_name(&path) {
                files.insert(name, path);
            }
        }
    }
    files
}

/// Name of a module: the part of the file name before `.ko`.
fn module_name(path: &Path) -> Option<String> {
    let (name, rest) = path.file_name()?.to_str()?.split_once(".ko")?;
    let is_module = rest.is_empty() || unpacker(rest).is_some();
    is_module.then(|| name.replace('-', "_"))
}

fn unpacker(extension: &str) -> Option<&'static str> {
    let extension = extension.strip_prefix('.')?;
    UNPACKERS.iter().find(|(known, _)| *known == extension).map(|(_, program)| *program)
}

fn unpacked(path: &Path) -> Result<Vec<u8>, VmError> {
    let reading = || format!("cannot read {}", path.display());
    let content = fs::read(path).while_doing(reading())?;
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    let Some(program) = unpacker(&format!(".{extension}")) else { return Ok(content) };
    let mut command = Command::new(program);
    command.arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child =
        command.spawn().map_err(|_| VmError::Missing(VmRequirement::Unpacker(program)))?;
    let input = child.stdin.take();
    let feeder = thread::spawn(move || input.map(|mut input| input.write_all(&content)));
    let output = child.wait_with_output().while_doing(reading())?;
    let _ = feeder.join();
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(VmError::Format(format!("{}: {program} cannot unpack it", path.display())))
    }
}

/// Returns the modules on which a module depends, from its section `.modinfo`: `depends=a,b`
/// between NUL bytes.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|bytes| bytes == KEY) else {
        return Vec::new();
    };
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value);
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(depends: &str) -> Vec<u8> {
        format!("\x7fELF..license=GPL\0depends={depends}\0name=x\0").into_bytes()
    }

    fn names(modules: &[KernelModule]) -> Vec<&str> {
        modules.iter().map(|module| module.name.as_str()).collect()
    }

    #[test]
    fn dependencies_are_loaded_first_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let drivers = folder.path().join("kernel/drivers");
        fs::create_dir_all(&drivers).unwrap();
        for (file, depends) in [
            ("virtio.ko", ""),
            ("virtio_ring.ko", "virtio"),
            ("virtio-pci.ko", "virtio_ring,virtio"),
            ("loop.ko", "loop"),
        ] {
            fs::write(drivers.join(file), module(depends)).unwrap();
        }
        let loaded = modules(folder.path(), &["virtio_pci", "absent", "virtio", "loop"]).unwrap();
        assert_eq!(names(&loaded), ["virtio", "virtio_ring", "virtio_pci", "loop"]);
    }

    #[test]
    fn compressed_modules_are_unpacked() {
        let folder = tempfile::tempdir().unwrap();
        let drivers = folder.path().join("kernel");
        fs::create_dir_all(&drivers).unwrap();
        fs::write(drivers.join("one.ko"), module("")).unwrap();
        let packed = Command::new("gzip").arg(drivers.join("one.ko")).status().unwrap();
        assert!(packed.success());
        let loaded = modules(folder.path(), &["one"]).unwrap();
        assert_eq!(loaded[0].content, module(""));
    }
}
