//! Downloads of kernel packages by the package manager. Nothing is installed on the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::WhileDoing;
use crate::kernel::kernels_folder;
use crate::{GuestArch, GuestKernel, VmError, fetched_images};

/// Part of the name of Debian's kernels for virtual machines.
fn flavor(arch: GuestArch) -> &'static str {
    match arch {
        GuestArch::X86_64 => "cloud-amd64",
        GuestArch::Aarch64 => "cloud-arm64",
    }
}

/// Downloads a kernel for virtual machines into the folder of kernels, and returns it. `version` is
/// a series such as `6.12`; without it, the kernel of the distribution.
///
/// # Errors
/// [`VmError::Format`] if this system has no packages of Debian or no such kernel,
/// [`VmError::System`] if the folder cannot be written.
pub fn fetch_kernel(version: Option<&str>) -> Result<GuestKernel, VmError> {
    let arch = GuestArch::host().ok_or_else(|| wrong("this architecture has no guests"))?;
    let kernels =
        kernels_folder().ok_or_else(|| wrong("neither HOME nor XDG_CACHE_HOME is set"))?;
    let flavor = flavor(arch);
    let package = match version {
        None => format!("linux-image-{flavor}"),
        Some(version) => format!("linux-image-{version}-{flavor}"),
    };
    let image = dependency(&package)?;
    let folder = kernels.join(&image);
    if let Some(kernel) = images_of(&folder) {
        return Ok(kernel);
    }
    fs::create_dir_all(&kernels).while_doing(format!("cannot make {}", kernels.display()))?;
    unpack_package(&image, &folder)?;
    images_of(&folder).ok_or_else(|| wrong(format!("the package {image} has no kernel")))
}

/// The kernel in the folder of one package.
fn images_of(folder: &Path) -> Option<GuestKernel> {
    let images = fetched_images(folder.parent()?);
    let image = images.iter().find(|image| image.starts_with(folder))?;
    GuestKernel::open(image).ok()
}

/// The package with the newest kernel, on which a metapackage depends.
fn dependency(package: &str) -> Result<String, VmError> {
    let listed = output(Command::new("apt-cache").args(["depends", package]))?;
    let names = listed.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let found = names.into_iter().find(|name| name.starts_with("linux-image"));
    found.map(str::to_owned).ok_or_else(|| wrong(format!("the package {package} does not exist")))
}

/// Downloads a package and unpacks it into a folder. The folder appears when it is complete.
pub(crate) fn unpack_package(package: &str, folder: &Path) -> Result<(), VmError> {
    let part = folder.with_extension(format!("part{}", std::process::id()));
    let making = || format!("cannot write {}", part.display());
    fs::create_dir_all(&part).while_doing(making())?;
    let result = download(package, &part).and_then(|file| {
        let mut unpack = Command::new("dpkg-deb");
        output(unpack.arg("--extract").arg(&file).arg(&part))?;
        fs::remove_file(file).while_doing(making())?;
        fs::rename(&part, folder).while_doing(format!("cannot make {}", folder.display()))
    });
    if result.is_err() {
        let _ = fs::remove_dir_all(&part);
    }
    result
}

/// Downloads a package into a folder.
fn download(package: &str, folder: &Path) -> Result<PathBuf, VmError> {
    let mut command = Command::new("apt-get");
    // The user of apt's sandbox may not write to a folder of root.
    command.args(["-qq", "-o", "APT::Sandbox::User=root", "download", package]);
    output(command.current_dir(folder))?;
    let entries = fs::read_dir(folder).while_doing(format!("cannot read {}", folder.display()))?;
    let mut files = entries.flatten().map(|entry| entry.path());
    let file = files.find(|path| path.extension().is_some_and(|extension| extension == "deb"));
    file.ok_or_else(|| wrong(format!("apt-get downloaded no file of {package}")))
}

/// Output of a command that must succeed.
pub(crate) fn output(command: &mut Command) -> Result<String, VmError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => wrong(format!(
            "{name} is not installed. On systems without packages of Debian, set \
             PAGEWISE_KERNEL to the path of a kernel image"
        )),
        _ => VmError::System { what: format!("cannot run {name}"), error },
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(wrong(format!("{name}: {message}")))
}

fn wrong(message: impl Into<String>) -> VmError {
    VmError::Format(message.into())
}
