//! The head of an HTTP/1 request. Requests with a body are rejected.

use crate::exposition::ExpositionFormat;

/// Maximum size of the head of a request in bytes.
pub(super) const MAX_HEAD_BYTES: usize = 8 << 10;
/// Maximum number of header lines of a request.
const MAX_HEADERS: usize = 64;

/// A parsed request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HttpRequest {
    pub(super) is_head: bool,
    /// Path of the request, without the query.
    pub(super) path: Vec<u8>,
    pub(super) closes: bool,
    pub(super) format: ExpositionFormat,
    pub(super) authorization: Option<Vec<u8>>,
}

/// Result of parsing.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RequestParse {
    /// The request is incomplete.
    Partial,
    /// The request is rejected. The value is the status code of the response.
    Refused(u16),
    /// A complete request, and the length of its head in bytes.
    Whole(HttpRequest, usize),
}

impl HttpRequest {
    pub(super) fn parse(input: &[u8]) -> RequestParse {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut head = httparse::Request::new(&mut headers);
        let length = match head.parse(input) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return RequestParse::Partial,
            Err(httparse::Error::TooManyHeaders) => return RequestParse::Refused(431),
            Err(httparse::Error::Version) => return RequestParse::Refused(505),
            Err(_) => return RequestParse::Refused(400),
        };
        let is_head = match head.method {
            Some("GET") => false,
            Some("HEAD") => true,
            _ => return RequestParse::Refused(405),
        };
        let path = head.path.unwrap_or_default().split(['?', '#']).next().unwrap_or_default();
        let mut request = HttpRequest {
            is_head,
            path: path.into(),
            closes: head.version == Some(0),
            format: ExpositionFormat::Prometheus,
            authorization: None,
        };
        let mut accept: Vec<&[u8]> = Vec::new();
        for header in head.headers.iter() {
            match header.name.to_ascii_lowercase().as_str() {
                "content-length" if header.value != b"0" => return RequestParse::Refused(413),
                "transfer-encoding" => return RequestParse::Refused(413),
                "connection" => request.closes |= has_token(header.value, b"close"),
                "accept" => accept.push(header.value),
                "authorization" => request.authorization = Some(header.value.to_vec()),
                _ => {}
            }
        }
        request.format = negotiate(&accept.join(&b","[..]));
        RequestParse::Whole(request, length)
    }
}

fn has_token(value: &[u8], token: &[u8]) -> bool {
    value.split(|&b| b == b',').any(|it| it.trim_ascii().eq_ignore_ascii_case(token))
}

/// The format that the client prefers according to the header `Accept`; the Prometheus format if it
/// has no preference.
fn negotiate(accept: &[u8]) -> ExpositionFormat {
    let accept = String::from_utf8_lossy(accept).to_ascii_lowercase();
    let (mut open_metrics, mut prometheus) = (0.0, 0.0);
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let (mut quality, mut is_served) = (1.0, true);
        for part in parts {
            match part.split_once('=') {
                Some(("q", value)) => quality = value.parse::<f64>().unwrap_or(0.0),
                Some(("version", "1.0.0")) => {}
                Some(("version", "0.0.4")) if media == "text/plain" => {}
                Some(("version", _)) => is_served = false,
                _ => {}
            }
        }
        match media {
            "application/openmetrics-text" if is_served => open_metrics = quality.max(open_metrics),
            "text/plain" if is_served => prometheus = quality.max(prometheus),
            _ => {}
        }
    }
    if open_metrics > 0.0 && open_metrics >= prometheus {
        ExpositionFormat::OpenMetrics
    } else {
        ExpositionFormat::Prometheus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scraper_gets_the_format_that_it_prefers() {
        let of = |accept: &str| negotiate(accept.as_bytes());
        // The header of Prometheus 2.42.
        let prometheus = "application/openmetrics-text;version=1.0.0,\
            application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(of(prometheus), ExpositionFormat::OpenMetrics);
        assert_eq!(of("text/html, */*"), ExpositionFormat::Prometheus);
        assert_eq!(of(""), ExpositionFormat::Prometheus);
        let old = "application/openmetrics-text;version=0.0.1,text/plain;version=0.0.4;q=0.5";
        assert_eq!(of(old), ExpositionFormat::Prometheus);
        let plain = "text/plain, application/openmetrics-text; q=0.2";
        assert_eq!(of(plain), ExpositionFormat::Prometheus);
        assert_eq!(of("application/openmetrics-text; q=x"), ExpositionFormat::Prometheus);
    }

    #[test]
    fn requests_other_than_scrapes_are_refused() {
        let of = |text: &str| HttpRequest::parse(text.as_bytes());
        assert_eq!(of("GET /metrics HTTP/1.1\r\nHost: x\r\n"), RequestParse::Partial);
        assert_eq!(of("POST /metrics HTTP/1.1\r\n\r\n"), RequestParse::Refused(405));
        assert_eq!(
            of("GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"),
            RequestParse::Refused(413)
        );
        assert_eq!(of("\x16\x03\x01\x02"), RequestParse::Refused(400));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(of(&many), RequestParse::Refused(431));
    }

    #[test]
    fn the_path_excludes_the_query() {
        let RequestParse::Whole(request, length) =
            HttpRequest::parse(b"GET /metrics?x=1 HTTP/1.1\r\nConnection: Close\r\n\r\nGET")
        else {
            panic!("a whole request");
        };
        assert_eq!((&*request.path, request.closes), (&b"/metrics"[..], true));
        assert_eq!(length, b"GET /metrics?x=1 HTTP/1.1\r\nConnection: Close\r\n\r\n".len());
    }
}
