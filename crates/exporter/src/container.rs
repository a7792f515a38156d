//! The systemd unit, container and Kubernetes pod of a cgroup, from its path, and the names of
//! containers, from the log files of the kubelet or from a container runtime.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::container_api;

/// Number of hexadecimal digits of a container ID.
const ID_DIGITS: usize = 64;
/// Maximum number of log files that are listed.
const MAX_LOG_FILES: usize = 10_000;

/// Unit, container and pod of a cgroup, from its path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupOwner<'a> {
    /// Innermost slice, such as `system.slice`.
    pub slice: &'a [u8],
    /// Systemd unit that is not a slice: `ssh.service`, `session-1.scope`.
    pub unit: &'a [u8],
    /// Container runtime: `docker`, `containerd`, `cri-o`, `podman`.
    pub runtime: &'static str,
    /// ID of the container: 64 hexadecimal digits.
    pub container_id: &'a [u8],
    /// UID of the Kubernetes pod.
    pub pod_uid: String,
    /// Quality-of-service class of the pod: `guaranteed`, `burstable`, `besteffort`.
    pub qos: &'static str,
}

/// Prefixes of scope units, with the container runtimes that create the scopes.
const SCOPES: [(&[u8], &str); 5] = [
    (b"docker-", "docker"),
    (b"cri-containerd-", "containerd"),
    (b"nerdctl-", "containerd"),
    (b"crio-", "cri-o"),
    (b"libpod-", "podman"),
];

impl<'a> CgroupOwner<'a> {
    /// Derives the owner from the path of a cgroup.
    pub fn of(path: &'a [u8]) -> CgroupOwner<'a> {
        let mut owner = CgroupOwner::default();
        let mut parent: &[u8] = b"";
        for component in path.split(|&b| b == b'/') {
            owner.add(parent, component);
            parent = component;
        }
        owner
    }

    fn add(&mut self, parent: &[u8], component: &'a [u8]) {
        if let Some(name) = component.strip_suffix(b".slice") {
            self.slice = component;
            self.add_pod(name);
        } else if has_suffix(component, &[b".service", b".scope", b".socket", b".mount", b".swap"])
        {
            self.unit = component;
        }
        self.add_pod(component);
        let name = component.strip_suffix(b".scope").unwrap_or(component);
        let (name, runtime) = SCOPES
            .iter()
            .find_map(|(prefix, runtime)| Some((name.strip_prefix(*prefix)?, *runtime)))
            .unwrap_or((name, if parent == b"docker" { "docker" } else { "" }));
        if is_container_id(name) {
            self.container_id = name;
            self.runtime = runtime;
        }
    }

    /// Adds the pod from a path component: `kubepods-burstable-podUID` of the systemd driver, or
    /// `podUID` in `kubepods/burstable` of the cgroupfs driver.
    fn add_pod(&mut self, name: &[u8]) {
        for (part, qos) in [
            (&b"kubepods"[..], "guaranteed"),
            (b"burstable", "burstable"),
            (b"besteffort", "besteffort"),
        ] {
            let is_part = name == part || name.split(|&b| b == b'-').any(|it| it == part);
            if is_part && (part == b"kubepods" || !self.qos.is_empty()) {
                self.qos = qos;
            }
        }
        let uid = name.strip_prefix(b"pod").or_else(|| {
            let at = name.windows(4).position(|it| it == b"-pod")?;
            Some(&name[at + 4..])
        });
        let is_uid = |it: &&[u8]| {
            it.len() >= 32 && it.iter().all(|b| b.is_ascii_hexdigit() || matches!(b, b'-' | b'_'))
        };
        if let Some(uid) = uid.filter(is_uid) {
            self.pod_uid = String::from_utf8_lossy(uid).replace('_', "-");
        }
    }
}

fn has_suffix(name: &[u8], suffixes: &[&[u8]]) -> bool {
    suffixes.iter().any(|it| name.ends_with(it))
}

fn is_container_id(name: &[u8]) -> bool {
    name.len() == ID_DIGITS && name.iter().all(u8::is_ascii_hexdigit)
}

/// Names of a container. Unknown names are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContainerNames {
    /// Name of the pod.
    pub(crate) pod: Vec<u8>,
    /// Namespace of the pod.
    pub(crate) namespace: Vec<u8>,
    /// Name of the container.
    pub(crate) container: Vec<u8>,
    /// Name of the image from which the container was created.
    pub(crate) image: Vec<u8>,
}

/// Sources of container names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerSources {
    /// Folder in which the kubelet creates a link for the log of each container.
    pub logs: Option<PathBuf>,
    /// Socket of a container runtime with Docker's API.
    pub socket: Option<PathBuf>,
}

impl ContainerSources {
    /// Checks that the runtime answers, if a socket is configured.
    ///
    /// # Errors
    /// [`io::Error`] if the socket cannot be reached, or if the response does not follow Docker's
    /// API.
    pub fn check(&self) -> io::Result<()> {
        self.socket.as_deref().map_or(Ok(()), |socket| container_api::read(socket).map(|_| ()))
    }

    /// True if no source is configured.
    pub(crate) const fn is_empty(&self) -> bool {
        self.logs.is_none() && self.socket.is_none()
    }
}

/// Names of the containers of a machine, by container ID.
#[derive(Clone, Debug, Default)]
pub(crate) struct ContainerNameTable(HashMap<Vec<u8>, Arc<ContainerNames>>);

impl ContainerNameTable {
    /// Reads the names from all sources. If a runtime does not answer, its earlier names are kept,
    /// so that series keep their labels while the runtime restarts.
    pub(crate) fn refresh(&mut self, sources: &ContainerSources) {
        let named = sources.socket.as_deref().map(container_api::read);
        if !matches!(named, Some(Err(_))) {
            self.0.clear();
        }
        self.0.extend(sources.logs.iter().flat_map(|folder| of_log_files(folder)));
        let named = named.into_iter().flatten().flatten();
        self.0.extend(named.map(|(id, names)| (id, Arc::new(names))));
    }

    /// Names of the container with this ID; `None` if they are unknown.
    pub(crate) fn get(&self, id: &[u8]) -> Option<&ContainerNames> {
        self.0.get(id).map(|it| &**it)
    }
}

/// Names from `/var/log/containers`, where the kubelet creates a link
/// `POD_NAMESPACE_CONTAINER-ID.log` for each container. The result is empty if the folder does not
/// exist.
fn of_log_files(folder: &Path) -> impl Iterator<Item = (Vec<u8>, Arc<ContainerNames>)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.take(MAX_LOG_FILES).filter_map(|entry| log_name(&entry.file_name()))
}

/// Container ID and names from the name of a log file; `None` if the file name has another form.
fn log_name(file: &OsStr) -> Option<(Vec<u8>, Arc<ContainerNames>)> {
    let name = file.as_bytes().strip_suffix(b".log")?;
    let at = name.len().checked_sub(ID_DIGITS + 1)?;
    let (names, id) = (&name[..at], &name[at + 1..]);
    if name[at] != b'-' || !is_container_id(id) {
        return None;
    }
    let mut parts = names.splitn(3, |&b| b == b'_').map(<[u8]>::to_vec);
    let (pod, namespace, container) = (parts.next()?, parts.next()?, parts.next()?);
    let names = ContainerNames { pod, namespace, container, image: Vec::new() };
    Some((id.to_vec(), Arc::new(names)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn of(path: &str) -> (String, String, &'static str, bool, String, &'static str) {
        let owner = CgroupOwner::of(path.as_bytes());
        let text = |it: &[u8]| String::from_utf8_lossy(it).into_owned();
        let has_id = owner.container_id == ID.as_bytes();
        (text(owner.slice), text(owner.unit), owner.runtime, has_id, owner.pod_uid, owner.qos)
    }

    #[test]
    fn a_service_of_systemd_has_a_slice_and_a_unit() {
        let expected = ("system.slice".into(), "ssh.service".into(), "", false, String::new(), "");
        assert_eq!(of("/system.slice/ssh.service"), expected);
        let session = of("/user.slice/user-1000.slice/session-2.scope");
        assert_eq!((&*session.0, &*session.1), ("user-1000.slice", "session-2.scope"));
    }

    #[test]
    fn pods_of_both_cgroup_drivers_are_recognized() {
        let uid = "0b5c6a1e-58a2-4a3f-9d5c-6f2f7f3f8c11";
        let slice = uid.replace('-', "_");
        let systemd = of(&format!(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-{ID}.scope"
        ));
        assert_eq!(
            (systemd.2, systemd.3, &*systemd.4, systemd.5),
            ("containerd", true, uid, "burstable")
        );
        let files = of(&format!("/kubepods/besteffort/pod{uid}/{ID}"));
        assert_eq!((files.2, files.3, &*files.4, files.5), ("", true, uid, "besteffort"));
        let guaranteed = of(&format!("/kubepods/pod{uid}/{ID}"));
        assert_eq!(guaranteed.5, "guaranteed");
    }

    #[test]
    fn containers_without_kubernetes_have_a_runtime() {
        assert_eq!(of(&format!("/system.slice/docker-{ID}.scope")).2, "docker");
        assert_eq!(of(&format!("/docker/{ID}")).2, "docker");
        assert_eq!(of(&format!("/machine.slice/libpod-{ID}.scope/container")).2, "podman");
        assert!(!of("/machine.slice/libpod-conmon-0123.scope").3);
    }

    #[test]
    fn log_files_name_pod_namespace_and_container() {
        let file = format!("web-5d4_shop_nginx-side-{ID}.log");
        let (id, names) = log_name(OsStr::new(&file)).expect("the name of a log file");
        assert_eq!(id, ID.as_bytes());
        assert_eq!(names.pod, b"web-5d4");
        assert_eq!((&*names.namespace, &*names.container), (&b"shop"[..], &b"nginx-side"[..]));
        assert!(log_name(OsStr::new("short.log")).is_none());
    }
}
