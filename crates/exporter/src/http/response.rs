//! Responses to requests.

use std::fmt::Write;
use std::sync::Arc;

use super::PublishedScrape;
use super::request::HttpRequest;

/// A response that is sent in parts: head, text that many responses share, end.
#[derive(Debug, Default)]
pub(super) struct HttpResponse {
    head: Vec<u8>,
    shared: Option<Arc<str>>,
    tail: Vec<u8>,
    sent: usize,
    closes: bool,
}

impl HttpResponse {
    /// The next bytes to send; empty if everything was sent.
    pub(super) fn rest(&self) -> &[u8] {
        let mut at = self.sent;
        let shared = self.shared.as_ref().map_or(&b""[..], |it| it.as_bytes());
        for part in [&self.head[..], shared, &self.tail[..]] {
            match part.get(at..) {
                Some(rest) if !rest.is_empty() => return rest,
                _ => at = at.saturating_sub(part.len()),
            }
        }
        &[]
    }

    pub(super) fn advance(&mut self, count: usize) {
        self.sent += count;
    }

    /// Adds header lines to the head.
    pub(super) fn add_headers(&mut self, lines: &str) {
        // The empty line at the end of the head is removed, and is added again below.
        self.head.truncate(self.head.len() - b"\r\n".len());
        self.head.extend_from_slice(lines.as_bytes());
        self.head.extend_from_slice(b"\r\n");
    }

    /// True if the connection must be closed after this response.
    pub(super) fn closes(&self) -> bool {
        self.closes
    }
}

const PAGE: &str = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>pagewise \
    export</title></head>\n<body><h1>pagewise export</h1>\n<p><a href=\"/metrics\">Metrics</a> of the \
    last sweep over all processes and memory cgroups, <a href=\"/healthz\">state</a> of the \
    exporter.</p></body></html>\n";

/// Creates the response to a request.
pub(super) fn answer(request: &HttpRequest, published: &PublishedScrape) -> HttpResponse {
    match &request.path[..] {
        b"/metrics" => match published.scrape(request.format) {
            Some((shared, tail)) => {
                let kind = request.format.content_type();
                make(200, kind, Some(shared), &tail, request.is_head, request.closes)
            }
            None => plain(request, 503, "the first sweep is not finished yet\n"),
        },
        b"/healthz" if published.is_healthy() => plain(request, 200, "ok\n"),
        b"/healthz" => plain(request, 503, "the last sweep is too old\n"),
        b"/" => make(200, "text/html; charset=utf-8", None, PAGE, request.is_head, request.closes),
        _ => plain(request, 404, "not found; the metrics are at /metrics\n"),
    }
}

fn plain(request: &HttpRequest, status: u16, text: &str) -> HttpResponse {
    make(status, "text/plain; charset=utf-8", None, text, request.is_head, request.closes)
}

/// Creates the response to bytes that do not form a valid request. The connection is closed after
/// it.
pub(super) fn refuse(status: u16) -> HttpResponse {
    let text = format!("{}\n", reason(status));
    make(status, "text/plain; charset=utf-8", None, &text, false, true)
}

/// Creates the response to a wrong or missing password.
pub(super) fn unauthorized(request: &HttpRequest) -> HttpResponse {
    plain(request, 401, "Unauthorized\n")
}

fn make(
    status: u16,
    content_type: &str,
    shared: Option<Arc<str>>,
    tail: &str,
    is_head: bool,
    closes: bool,
) -> HttpResponse {
    let length = shared.as_ref().map_or(0, |it| it.len()) + tail.len();
    let mut head = format!(
        "HTTP/1.1 {status} {}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nVary: Accept\r\n",
        reason(status),
    );
    match status {
        401 => head.push_str("WWW-Authenticate: Basic\r\n"),
        405 => head.push_str("Allow: GET, HEAD\r\n"),
        _ => {}
    }
    let connection = if closes { "close" } else { "keep-alive" };
    write!(head, "Connection: {connection}\r\n\r\n").expect("a String takes all");
    let (shared, tail) = if is_head { (None, "") } else { (shared, tail) };
    HttpResponse { head: head.into(), shared, tail: tail.into(), sent: 0, closes }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        405 => "Method Not Allowed",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}
