//! A client of weir's runtime API over its Unix socket.

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

use super::nginx_metrics::NginxMetrics;

/// The timeout of a configuration. weir answers once all workers have it, and gives them 30
/// seconds.
const LONGEST_CHANGE: Duration = Duration::from_secs(90);
const LONGEST_QUESTION: Duration = Duration::from_secs(5);
/// The longest answer that weir gives.
const LONGEST_ANSWER: usize = 1 << 20;

/// The longest page of metrics. With thousands of Ingresses it has some megabytes.
const LONGEST_METRICS: usize = 1 << 30;

/// The `Host` of the internal server that answers with the digest of the configuration and with
/// metrics.
pub const INTERNAL_HOST: &str = "served.weir-ingress.internal";
/// The path of the metrics there.
pub const METRICS_PATH: &str = "/figures";

/// weir's answer to a configuration.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All workers serve it: the running ones or new ones, as the text says.
    Taken(String),
    /// The configuration is wrong: the part and its line, if known, and the message.
    Refused(Option<(String, u32)>, String),
    /// weir lacks a part that was sent as a name only.
    Lacks(String),
    /// weir cannot take the configuration now.
    Later(String),
}

/// The client, which opens a connection for each request.
#[derive(Clone, Debug)]
pub struct WeirApi {
    pub socket: PathBuf,
}

impl WeirApi {
    /// Sends a configuration as parts.
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

    /// The digest of the configuration that weir serves. Empty if this program did not make it.
    pub async fn served(&self) -> Result<String, String> {
        let request = Request::builder().uri("/").header(HOST, INTERNAL_HOST).body(Full::default());
        let request = request.map_err(|error| error.to_string())?;
        let answer = timeout(LONGEST_QUESTION, self.ask(request)).await;
        match answer.map_err(|_| "weir does not answer".to_owned())?? {
            // The default server of weir's first configuration may answer anything.
            (StatusCode::OK, body)
                if body.len() < 100 && body.iter().all(u8::is_ascii_hexdigit) =>
            {
                Ok(String::from_utf8_lossy(&body).into_owned())
            }
            _ => Ok(String::new()),
        }
    }

    /// weir's metrics; `None` if weir does not answer with them.
    pub async fn metrics(&self) -> Option<NginxMetrics> {
        let request =
            Request::builder().uri(METRICS_PATH).header(HOST, INTERNAL_HOST).body(Full::default());
        let request = request.ok()?;
        timeout(LONGEST_QUESTION, async {
            let answer = self.send(request).await.ok()?;
            // weir's first configuration has no page of metrics.
            if answer.status() != StatusCode::OK {
                return None;
            }
            let mut body = Limited::new(answer.into_body(), LONGEST_METRICS);
            let (mut metrics, mut line) = (NginxMetrics::default(), Vec::new());
            while let Some(frame) = body.frame().await {
                let Ok(data) = frame.ok()?.into_data() else { continue };
                for part in data.split_inclusive(|byte| *byte == b'\n') {
                    line.extend_from_slice(part);
                    if let Some(whole) = line.strip_suffix(b"\n") {
                        metrics.read_line(&String::from_utf8_lossy(whole));
                        line.clear();
                    }
                }
            }
            Some(metrics)
        })
        .await
        .ok()?
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, String> {
        let text = |error: &dyn std::fmt::Display| format!("{}: {error}", self.socket.display());
        let stream = UnixStream::connect(&self.socket).await.map_err(|e| text(&e))?;
        let (mut sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|e| text(&e))?;
        // The connection ends when its sender is dropped, also after a timeout.
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

/// The meaning of weir's answer to a configuration of `length` bytes.
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
        // The same configuration stays forbidden until the objects change.
        StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => Verdict::Refused(None, why()),
        // weir's API limits the body. New objects are left out, or come in pieces, so that all
        // others do not wait for a smaller configuration.
        StatusCode::PAYLOAD_TOO_LARGE => Verdict::Refused(
            None,
            format!("{}; raise client_max_body_size where weir_api stands ({length} bytes)", why()),
        ),
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
                Verdict::Refused(
                    None,
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
