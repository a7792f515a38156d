//! Kernels to boot: images, their architecture and version, and the folders of their modules.

use std::env::consts::ARCH;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use pagewise_sys::system;

use crate::VmError;
use crate::error::WhileDoing;

/// Environment variable that names a kernel image.
pub const KERNEL_VARIABLE: &str = "PAGEWISE_KERNEL";

/// Architecture of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestArch {
    /// 64-bit x86.
    X86_64,
    /// 64-bit ARM.
    Aarch64,
}

impl GuestArch {
    /// The architecture of this host; `None` if guests do not support it.
    pub fn host() -> Option<GuestArch> {
        [GuestArch::X86_64, GuestArch::Aarch64].into_iter().find(|arch| arch.is_host())
    }

    pub(crate) fn is_host(self) -> bool {
        ARCH == match self {
            GuestArch::X86_64 => "x86_64",
            GuestArch::Aarch64 => "aarch64",
        }
    }

    /// Name of the QEMU program that emulates the architecture.
    pub(crate) fn qemu(self) -> &'static str {
        match self {
            GuestArch::X86_64 => "qemu-system-x86_64",
            GuestArch::Aarch64 => "qemu-system-aarch64",
        }
    }
}

/// A kernel image, and the modules that belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestKernel {
    /// Path of the image: a bzImage for x86, an Image for ARM.
    pub image: PathBuf,
    /// Architecture of the image.
    pub arch: GuestArch,
    /// Version, as `uname -r` prints it. `None` if neither the image nor its file name contains it.
    pub release: Option<String>,
    /// Folder of the modules. `None` if the host has no modules of this version; the kernel must
    /// then contain the virtio drivers.
    pub modules: Option<PathBuf>,
}

/// Number of bytes at the start of an image that contain the magic numbers and the address of the
/// version string.
const HEAD: usize = 0x400;
/// Offsets and values of the x86 boot protocol: magic number; address of the version string minus
/// 0x200 (Documentation/arch/x86/boot.rst).
const X86_MAGIC: (usize, &[u8]) = (0x202, b"HdrS");
const X86_VERSION: usize = 0x20e;
/// Offset and value of the magic number of ARM images (Documentation/arch/arm64/booting.rst).
/// Self-extracting EFI images contain `zimg` instead.
const ARM_MAGIC: (usize, &[u8]) = (0x38, b"ARM\x64");
const ARM_PACKED_MAGIC: (usize, &[u8]) = (0x04, b"zimg");
/// Maximum length of a version string in bytes.
const MAX_VERSION: usize = 256;

impl GuestKernel {
    /// Opens a kernel image, and reads its architecture and version.
    ///
    /// # Errors
    /// [`VmError::System`] if the image cannot be read, [`VmError::Format`] if the file is not a
    /// kernel.
    pub fn open(image: &Path) -> Result<GuestKernel, VmError> {
        let mut bytes = Vec::new();
        let file = File::open(image).while_doing(format!("cannot read {}", image.display()))?;
        // The version string is in the setup code, which has at most 32 KiB.
        let read = file.take(64 << 10).read_to_end(&mut bytes);
        read.while_doing(format!("cannot read {}", image.display()))?;
        let Some(arch) = architecture(&bytes) else {
            let words = "is not a kernel image: expected a bzImage of x86-64 or an Image of arm64";
            return Err(VmError::Format(format!("{} {words}", image.display())));
        };
        let release = release_in(&bytes).or_else(|| release_of_name(image));
        let modules = release.as_deref().and_then(|release| folder_of_modules(image, release));
        Ok(GuestKernel { image: image.to_owned(), arch, release, modules })
    }

    /// Returns the kernel that the environment variable names, or the first of: downloaded kernels,
    /// the kernel of the running system, other kernels in `/boot`. Only kernels of the host's
    /// architecture are considered.
    pub fn find() -> Option<GuestKernel> {
        if let Some(named) = std::env::var_os(KERNEL_VARIABLE).filter(|name| !name.is_empty()) {
            return GuestKernel::open(Path::new(&named)).ok();
        }
        let release = String::from_utf8_lossy(&system::kernel_release()).into_owned();
        let mut images: Vec<PathBuf> = Vec::new();
        images.extend(kernels_folder().iter().flat_map(|folder| fetched_images(folder)));
        images.push(Path::new("/boot").join(format!("vmlinuz-{release}")));
        images.push(Path::new("/lib/modules").join(&release).join("vmlinuz"));
        images.extend(images_in(Path::new("/boot")));
        let kernels = images.iter().filter_map(|image| GuestKernel::open(image).ok());
        kernels.into_iter().find(|kernel| kernel.arch.is_host())
    }
}

/// Folder of downloaded kernels: `pagewise/kernels` in the user's cache folder.
pub fn kernels_folder() -> Option<PathBuf> {
    cache_folder("kernels")
}

/// Path of a folder of pagewise in the user's cache folder.
pub(crate) fn cache_folder(name: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty());
    let home = || std::env::var_os("HOME").filter(|value| !value.is_empty());
    let cache = cache.map(PathBuf::from).or_else(|| Some(PathBuf::from(home()?).join(".cache")))?;
    Some(cache.join("pagewise").join(name))
}

/// The images of downloaded kernels, the newest first. Each kernel is in the folder `boot` of its
/// own folder.
pub fn fetched_images(folder: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut images: Vec<PathBuf> =
        folders.flat_map(|entry| images_in(&entry.path().join("boot"))).collect();
    images.sort();
    images.reverse();
    images
}

/// Lists the kernel images in a folder, in the order of their names.
fn images_in(folder: &Path) -> Vec<PathBuf> {
    let is_image = |path: &PathBuf| {
        let name = path.file_name().map(OsStr::as_encoded_bytes).unwrap_or_default();
        name.starts_with(b"vmlinuz")
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut images: Vec<PathBuf> = entries.filter(is_image).collect();
    images.sort();
    images
}

fn has(head: &[u8], (at, magic): (usize, &[u8])) -> bool {
    head.get(at..at + magic.len()) == Some(magic)
}

fn architecture(image: &[u8]) -> Option<GuestArch> {
    let head = image.get(..HEAD)?;
    if has(head, X86_MAGIC) {
        Some(GuestArch::X86_64)
    } else if has(head, ARM_MAGIC) || has(head, ARM_PACKED_MAGIC) {
        Some(GuestArch::Aarch64)
    } else {
        None
    }
}

/// Reads the version from an x86 image: the first word of the version string.
fn release_in(image: &[u8]) -> Option<String> {
    if !has(image, X86_MAGIC) {
        return None;
    }
    let address = image.get(X86_VERSION..X86_VERSION + 2)?;
    let at = usize::from(u16::from_le_bytes([address[0], address[1]])) + 0x200;
    let text = image.get(at..)?;
    let word = text.iter().take(MAX_VERSION).take_while(|byte| byte.is_ascii_graphic());
    let word: Vec<u8> = word.copied().collect();
    let word = String::from_utf8(word).ok()?;
    // The version becomes part of a path.
    (!word.is_empty() && !word.contains('/') && !word.starts_with('.')).then_some(word)
}

/// Version in a file name such as `vmlinuz-6.1.0`.
fn release_of_name(image: &Path) -> Option<String> {
    let (_, release) = image.file_name()?.to_str()?.split_once('-')?;
    Some(release.to_owned())
}

/// Finds the folder of a kernel's modules: in the folder tree of the image, else on the host.
fn folder_of_modules(image: &Path, release: &str) -> Option<PathBuf> {
    let beside = image.parent().filter(|folder| folder.join("modules.order").exists());
    let root = image.parent().and_then(Path::parent);
    let roots = root.into_iter().chain([Path::new("/")]);
    let folders = roots.flat_map(|root| {
        ["lib/modules", "usr/lib/modules"].map(|folder| root.join(folder).join(release))
    });
    beside.map(Path::to_owned).into_iter().chain(folders).find(|folder| folder.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first bytes of a bzImage with this version.
    fn image(version: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 0x1000];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[X86_VERSION..X86_VERSION + 2].copy_from_slice(&0x300_u16.to_le_bytes());
        image[0x500..0x500 + version.len()].copy_from_slice(version);
        image
    }

    #[test]
    fn an_image_has_its_version_and_the_modules_beside_it() {
        let root = tempfile::tempdir().unwrap();
        let modules = root.path().join("lib/modules/6.1.0-test");
        fs::create_dir_all(&modules).unwrap();
        fs::create_dir(root.path().join("boot")).unwrap();
        let path = root.path().join("boot/vmlinuz");
        fs::write(&path, image(b"6.1.0-test (someone) #1")).unwrap();
        let kernel = GuestKernel::open(&path).unwrap();
        assert_eq!(kernel.release.as_deref(), Some("6.1.0-test"));
        assert_eq!(kernel.modules, Some(modules));
        assert_eq!(kernel.arch, GuestArch::X86_64);
    }

    #[test]
    fn a_version_cannot_lead_to_another_folder() {
        for version in [&b"../../etc"[..], b"/etc", b"", b"\x80"] {
            assert_eq!(release_in(&image(version)), None);
        }
        let mut outside = image(b"6.1");
        outside[X86_VERSION..X86_VERSION + 2].fill(0xff);
        assert_eq!(release_in(&outside), None);
    }

    #[test]
    fn another_file_is_no_kernel() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), [0; 0x1000]).unwrap();
        assert!(matches!(GuestKernel::open(file.path()), Err(VmError::Format(_))));
    }
}
