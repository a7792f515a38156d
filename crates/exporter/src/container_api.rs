//! Names of containers from Docker's API over a Unix socket. Podman has the same API.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::container::ContainerNames;

/// Timeout of each read and write. The sweep waits for the response.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of bytes of a response that are read. A container takes some KiB.
const MAX_ANSWER: u64 = 16 << 20;

/// A container in the response.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListedContainer {
    id: String,
    #[serde(default)]
    names: Option<Vec<String>>,
    #[serde(default)]
    image: Option<String>,
    #[serde(default)]
    labels: Option<ContainerLabels>,
}

/// Labels with which a runtime marks the pod of a container.
#[derive(Debug, Default, Deserialize)]
struct ContainerLabels {
    #[serde(rename = "io.kubernetes.pod.name", default)]
    pod: String,
    #[serde(rename = "io.kubernetes.pod.namespace", default)]
    namespace: String,
    #[serde(rename = "io.kubernetes.container.name", default)]
    container: String,
}

/// Reads the IDs and names of all running containers.
///
/// # Errors
/// [`io::Error`] if the socket cannot be reached, or if the response does not follow the API.
pub(crate) fn read(socket: &Path) -> io::Result<Vec<(Vec<u8>, ContainerNames)>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    // HTTP 1.0: the response is not chunked, and ends when the connection is closed.
    stream.write_all(b"GET /containers/json HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    parse(&answer)
}

fn parse(answer: &[u8]) -> io::Result<Vec<(Vec<u8>, ContainerNames)>> {
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Response::new(&mut headers);
    let begin = match head.parse(answer) {
        Ok(httparse::Status::Complete(begin)) => begin,
        _ => return Err(wrong("the answer is not HTTP".into())),
    };
    match head.code {
        Some(200) => {}
        code => return Err(wrong(format!("the answer has status {}", code.unwrap_or_default()))),
    }
    let list: Vec<ListedContainer> = serde_json::from_slice(&answer[begin..])
        .map_err(|error| wrong(format!("the answer is not a list of containers: {error}")))?;
    Ok(list.into_iter().map(named).collect())
}

fn named(container: ListedContainer) -> (Vec<u8>, ContainerNames) {
    let labels = container.labels.unwrap_or_default();
    let first = container.names.into_iter().flatten().next().unwrap_or_default();
    let name = match labels.container.as_str() {
        "" => first.trim_start_matches('/').to_owned(),
        of_pod => of_pod.to_owned(),
    };
    let names = ContainerNames {
        pod: labels.pod.into_bytes(),
        namespace: labels.namespace.into_bytes(),
        container: name.into_bytes(),
        image: container.image.unwrap_or_default().into_bytes(),
    };
    (container.id.into_bytes(), names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &str) -> Vec<u8> {
        format!("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{body}").into_bytes()
    }

    #[test]
    fn a_container_has_the_name_of_the_runtime_or_that_in_its_pod() {
        let list = parse(&answer(
            r#"[{"Id": "a1", "Names": ["/web"], "Image": "nginx:1.27", "Labels": {"x": "y"}},
                {"Id": "b2", "Names": ["/k8s_app_shop"], "Image": "sha256:0", "Labels": {
                    "io.kubernetes.pod.name": "shop-1", "io.kubernetes.pod.namespace": "prod",
                    "io.kubernetes.container.name": "app"}},
                {"Id": "c3", "Names": null, "Labels": null}]"#,
        ));
        let text = |it: &[u8]| String::from_utf8_lossy(it).into_owned();
        let found: Vec<[String; 5]> = list
            .unwrap()
            .iter()
            .map(|(id, it)| {
                [id, &it.pod, &it.namespace, &it.container, &it.image].map(|it| text(it))
            })
            .collect();
        assert_eq!(found[0], ["a1", "", "", "web", "nginx:1.27"]);
        assert_eq!(found[1], ["b2", "shop-1", "prod", "app", "sha256:0"]);
        assert_eq!(found[2], ["c3", "", "", "", ""]);
    }

    #[test]
    fn other_answers_are_errors() {
        for (text, part) in [
            (b"".to_vec(), "not HTTP"),
            (b"HTTP/1.0 404 Not Found\r\n\r\n{}".to_vec(), "status 404"),
            (answer("{}"), "not a list"),
            (answer("[{\"Id\": 5}]"), "not a list"),
            (answer("[{\"Id\": \"a\""), "not a list"),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
