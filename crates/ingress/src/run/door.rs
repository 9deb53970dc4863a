//! weir's runtime API, over a Unix socket.

use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::figures::Figures;

/// weir answers once all workers have taken a configuration, for which it gives them 30 seconds.
const LONGEST_CHANGE: Duration = Duration::from_secs(90);
const LONGEST_QUESTION: Duration = Duration::from_secs(5);
/// Answers that are longer are not weir's.
const LONGEST_ANSWER: usize = 1 << 20;

/// Figures are sent as they are counted: of thousands of Ingresses they are some megabytes.
const LONGEST_FIGURES: usize = 1 << 30;

/// The server name under which weir says which configuration it serves, and shows its figures.
pub const SERVED: &str = "served.weir-ingress.internal";
/// Where that server has them.
pub const FIGURES: &str = "/figures";

/// What weir says to a configuration.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is served: by running or new workers.
    Taken(String),
    /// It is wrong: the part and its line, and why.
    Refused(Option<(String, u32)>, String),
    /// weir does not have all parts that came as names.
    Lacks(String),
    /// Not now.
    Later(String),
}

/// The way to weir.
#[derive(Clone, Debug)]
pub struct Door {
    pub socket: PathBuf,
}

impl Door {
    /// Hands a configuration over, in parts.
    pub async fn put(&self, parts: Vec<u8>) -> Verdict {
        let length = parts.len();
        let request = Request::builder()
            .method(Method::PUT)
            .uri("/config")
            .header(HOST, "weir")
            .header(CONTENT_TYPE, "application/vnd.weir.parts")
            .body(Full::new(Bytes::from(parts)));
        let answer = match request {
            Ok(request) => timeout(LONGEST_CHANGE, self.ask(request)).await,
            Err(error) => return Verdict::Later(error.to_string()),
        };
        let (status, body) = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Verdict::Later(error),
            Err(_) => return Verdict::Later("weir does not answer".to_owned()),
        };
        verdict(status, &body, length)
    }

    /// Which configuration weir serves; empty: none of ours.
    pub async fn served(&self) -> Result<String, String> {
        let request = Request::builder().uri("/").header(HOST, SERVED).body(Full::default());
        let request = request.map_err(|error| error.to_string())?;
        let answer = timeout(LONGEST_QUESTION, self.ask(request)).await;
        match answer.map_err(|_| "weir does not answer".to_owned())?? {
            // weir's first configuration may have an answer of its own.
            (StatusCode::OK, body)
                if body.len() < 100 && body.iter().all(u8::is_ascii_hexdigit) =>
            {
                Ok(String::from_utf8_lossy(&body).into_owned())
            }
            _ => Ok(String::new()),
        }
    }

    /// What weir counts. `None`: it does not say so now.
    pub async fn figures(&self) -> Option<Figures> {
        let request = Request::builder().uri(FIGURES).header(HOST, SERVED).body(Full::default());
        let request = request.ok()?;
        timeout(LONGEST_QUESTION, async {
            let answer = self.send(request).await.ok()?;
            // weir's first configuration has no such page.
            if answer.status() != StatusCode::OK {
                return None;
            }
            let mut body = Limited::new(answer.into_body(), LONGEST_FIGURES);
            let (mut figures, mut line) = (Figures::default(), Vec::new());
            while let Some(frame) = body.frame().await {
                let Ok(data) = frame.ok()?.into_data() else { continue };
                for part in data.split_inclusive(|byte| *byte == b'\n') {
                    line.extend_from_slice(part);
                    if let Some(whole) = line.strip_suffix(b"\n") {
                        figures.take(&String::from_utf8_lossy(whole));
                        line.clear();
                    }
                }
            }
            Some(figures)
        })
        .await
        .ok()?
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, String> {
        let text = |error: &dyn std::fmt::Display| format!("{}: {error}", self.socket.display());
        let stream = UnixStream::connect(&self.socket).await.map_err(|e| text(&e))?;
        let (mut sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|e| text(&e))?;
        // It ends when its sender is dropped, also where the time is over.
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(|e| text(&e))
    }

    async fn ask(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), String> {
        let text = |error: &dyn std::fmt::Display| format!("{}: {error}", self.socket.display());
        let answer = self.send(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
        Ok((status, body.map_err(|e| text(&e))?.to_bytes()))
    }
}

/// What weir's answer to a configuration of `length` bytes means.
fn verdict(status: StatusCode, body: &[u8], length: usize) -> Verdict {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |place: &str| json.pointer(place).and_then(Value::as_str).map(str::to_owned);
    let why = || {
        text("/error/text").unwrap_or_else(|| {
            format!(
                "weir answers {status}: {}",
                String::from_utf8_lossy(&body[..body.len().min(200)])
            )
        })
    };
    match status {
        StatusCode::OK => Verdict::Taken(text("/taken_by").unwrap_or_default()),
        StatusCode::UNPROCESSABLE_ENTITY => {
            let line = json.pointer("/error/line").and_then(Value::as_u64);
            let line = line.and_then(|line| u32::try_from(line).ok());
            let part = text("/error/file");
            let part = part.and_then(|file| file.strip_prefix("part ").map(str::to_owned));
            Verdict::Refused(part.zip(line), why())
        }
        StatusCode::NOT_FOUND => Verdict::Lacks(why()),
        // What is forbidden stays so until the objects change.
        StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => Verdict::Refused(None, why()),
        // No object is at fault: the way to weir has a limit, and weir keeps what it serves.
        StatusCode::PAYLOAD_TOO_LARGE => Verdict::Later(format!(
            "{}; raise client_max_body_size where weir_api stands ({length} bytes)",
            why()
        )),
        _ => Verdict::Later(why()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_verdicts() {
        let refused =
            br#"{"error":{"status":422,"text":"unknown directive","file":"part a1","line":7}}"#;
        let cases = [
            (
                200,
                &br#"{"taken_by":"running workers"}"#[..],
                Verdict::Taken("running workers".to_owned()),
            ),
            (
                422,
                refused,
                Verdict::Refused(Some(("a1".to_owned(), 7)), "unknown directive".to_owned()),
            ),
            (404, br#"{"error":{"text":"no part"}}"#, Verdict::Lacks("no part".to_owned())),
            (503, br#"{"error":{"text":"later"}}"#, Verdict::Later("later".to_owned())),
            (502, b"<html>", Verdict::Later("weir answers 502 Bad Gateway: <html>".to_owned())),
            (
                413,
                br#"{"error":{"text":"too large"}}"#,
                Verdict::Later(
                    "too large; raise client_max_body_size where weir_api stands (9 bytes)"
                        .to_owned(),
                ),
            ),
        ];
        for (status, body, wanted) in cases {
            assert_eq!(verdict(StatusCode::from_u16(status).unwrap(), body, 9), wanted);
        }
    }
}
