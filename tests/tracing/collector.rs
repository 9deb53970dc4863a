//! A collector of OpenTelemetry: it takes batches of spans, and answers as it is told.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use weir_testkit::{ask_until, listen};

/// What came to a collector: the head of each request, and what it said.
pub type Requests = Arc<Mutex<Vec<(String, ExportTraceServiceRequest)>>>;

/// A collector that answers with a status and a body, which may change.
pub struct Collector {
    pub port: u16,
    pub says: Arc<Says>,
    pub requests: Requests,
}

pub struct Says {
    pub status: AtomicU16,
    pub body: Mutex<Vec<u8>>,
}

impl Says {
    pub fn status(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }
}

impl Collector {
    pub fn new() -> Collector {
        let all_taken = ExportTracePartialSuccess::default();
        let body = Mutex::new(answer(all_taken));
        let (says, requests) =
            (Arc::new(Says { status: AtomicU16::new(200), body }), Requests::default());
        let (own, told) = (says.clone(), requests.clone());
        let port = listen(move |stream| while collect(&stream, &own, &told).is_some() {});
        Collector { port, says, requests }
    }

    pub fn spans(&self) -> Vec<Span> {
        let requests = self.requests.lock().unwrap();
        let all = requests.iter().flat_map(|(_, request)| &request.resource_spans);
        all.flat_map(|of| &of.scope_spans).flat_map(|of| &of.spans).cloned().collect()
    }

    /// Waits for so many spans.
    pub fn wait(&self, n: usize) -> Vec<Span> {
        assert!(ask_until(|| self.spans().len() >= n), "{n}: {:#?}", self.spans());
        let spans = self.spans();
        assert_eq!(spans.len(), n, "{spans:#?}");
        spans
    }

    /// An `otel_exporter` block that tells it of each span at once.
    pub fn exporter(&self) -> String {
        self.exporter_with("interval 1ms;")
    }

    pub fn exporter_with(&self, more: &str) -> String {
        format!("otel_exporter {{ endpoint http://127.0.0.1:{}; {more} }}", self.port)
    }
}

pub fn answer(partial: ExportTracePartialSuccess) -> Vec<u8> {
    ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec()
}

/// Takes one request on a connection.
fn collect(stream: &TcpStream, says: &Says, told: &Requests) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (reader.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    let length = head.split("Content-Length: ").nth(1)?.split("\r\n").next()?.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    assert!(reader.buffer().is_empty(), "one request at a time");
    let request = ExportTraceServiceRequest::decode(body.as_slice()).expect("spans");
    let (status, body) = (says.status.load(Ordering::SeqCst), says.body.lock().unwrap().clone());
    if status == 200 {
        told.lock().unwrap().push((head, request));
    }
    let head = format!("HTTP/1.1 {status} Said\r\nContent-Length: {}\r\n\r\n", body.len());
    (&*stream).write_all(&[head.as_bytes(), &body].concat()).ok()
}
