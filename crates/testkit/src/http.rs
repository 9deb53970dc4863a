//! HTTP/1 as raw bytes.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::wait::{PATIENCE, wait_delivered};

/// A connection to a server. It is kept alive between requests.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The header fields in order, with names as received.
    pub headers: Vec<(String, String)>,
    /// The body, without chunked framing.
    pub bytes: Vec<u8>,
}

impl Client {
    /// Connects to a port on 127.0.0.1.
    pub fn connect(port: u16) -> Client {
        Client::try_connect(port).unwrap_or_else(|e| panic!("cannot connect to port {port}: {e}"))
    }

    /// Connects. An error if no server listens.
    pub fn try_connect(port: u16) -> std::io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    /// Sends raw bytes.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Client {
        self.try_send(bytes).expect("sending to the server");
        self
    }

    /// As [`Client::send`], and waits until the server's socket has received the bytes.
    pub fn deliver(&mut self, bytes: impl AsRef<[u8]>) {
        self.send(bytes);
        wait_delivered(self.stream.get_ref());
    }

    /// Sends bytes. An error if the server has closed.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes.as_ref())
    }

    /// Sends a GET request on this connection and reads the response.
    pub fn get(&mut self, path: &str) -> Response {
        self.ask(&format!("GET {path}"), "", "")
    }

    /// Sends a request on this connection and reads the response: method and target, header lines
    /// with line ends, and a body.
    pub fn ask(&mut self, line: &str, headers: &str, body: &str) -> Response {
        self.send(format!("{line} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n{body}"));
        self.response()
    }

    /// Reads one response.
    pub fn response(&mut self) -> Response {
        self.try_response().expect("a response of the server")
    }

    /// Reads one response. An error if the server closes or does not send HTTP.
    pub fn try_response(&mut self) -> std::io::Result<Response> {
        self.try_response_to("GET")
    }

    /// Reads one response to a request with this method: a response to HEAD has no body.
    pub fn try_response_to(&mut self, method: &str) -> std::io::Result<Response> {
        let status_line = self.try_line()?;
        let status = status_line.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.ok_or_else(|| odd(&status_line))?;
        let mut headers = Vec::new();
        loop {
            let line = self.try_line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| odd(&line))?;
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
        let mut response = Response { status, headers, bytes: Vec::new() };
        if method != "HEAD" {
            response.bytes = self.body(&response)?;
        }
        Ok(response)
    }

    /// Whether the server has closed the connection. Waits for that or for data.
    pub fn is_closed(&mut self) -> bool {
        match self.stream.fill_buf() {
            Ok(bytes) => bytes.is_empty(),
            Err(e) => !is_timeout(&e),
        }
    }

    /// Reads to the end of the connection.
    pub fn rest(&mut self) -> String {
        String::from_utf8_lossy(&self.rest_bytes()).into_owned()
    }

    /// As [`Client::rest`], without conversion to text.
    pub fn rest_bytes(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Bytes before a reset count as well.
        let end = self.stream.read_to_end(&mut bytes);
        let is_open = end.is_err_and(|e| is_timeout(&e));
        assert!(!is_open, "still open after {:?}", String::from_utf8_lossy(&bytes));
        bytes
    }

    fn body(&mut self, response: &Response) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        if matches!(response.status, 100..=199 | 204 | 304) {
            return Ok(bytes);
        }
        if response.header("Transfer-Encoding").is_some_and(|te| te.contains("chunked")) {
            loop {
                let head = self.try_line()?;
                let size = head.split(';').next().unwrap_or_default().trim();
                let size = u64::from_str_radix(size, 16).map_err(|_| odd(&head))?;
                self.stream.by_ref().take(size).read_to_end(&mut bytes)?;
                // The last chunk may be followed by trailers, which are ignored.
                while !self.try_line()?.is_empty() {}
                if size == 0 {
                    return Ok(bytes);
                }
            }
        }
        match response.header("Content-Length").map(str::parse::<u64>) {
            Some(length) => {
                let length = length.map_err(|_| odd("Content-Length"))?;
                let n = self.stream.by_ref().take(length).read_to_end(&mut bytes)?;
                if (n as u64) < length {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
            }
            None => drop(self.stream.read_to_end(&mut bytes)?),
        }
        Ok(bytes)
    }

    /// Reads one line, without its line end.
    pub fn try_line(&mut self) -> std::io::Result<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }
}

/// Whether [`PATIENCE`] is over.
fn is_timeout(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn odd(what: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, format!("no HTTP: {what:?}"))
}

impl Response {
    /// The first header field with this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn body(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn answer(text: &'static str) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Client::connect(listener.local_addr().unwrap().port());
        listener.accept().unwrap().0.write_all(text.as_bytes()).unwrap();
        client
    }

    #[test]
    fn bodies_end_by_length_chunks_or_close() {
        let mut c =
            answer("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcHTTP/1.1 204 No\r\n\r\n");
        assert_eq!(c.response().body(), "abc");
        assert_eq!(c.response().status, 204);
        assert!(c.is_closed());
        let mut c = answer(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n1\r\nd\r\n0\r\n\r\n",
        );
        assert_eq!(c.response().body(), "abcd");
        let mut c = answer("HTTP/1.1 200 OK\r\nX: y\r\n\r\nrest");
        let r = c.response();
        assert_eq!((r.body().as_str(), r.header("x")), ("rest", Some("y")));
    }

    #[test]
    fn a_connection_that_stays_open_is_not_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = Client::connect(listener.local_addr().unwrap().port());
        let short = std::time::Duration::from_millis(10);
        client.stream.get_ref().set_read_timeout(Some(short)).unwrap();
        assert!(!client.is_closed());
        let rest = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| client.rest()));
        assert!(rest.is_err());
        drop(listener);
        assert!(client.is_closed());
        assert_eq!(client.rest(), "");
    }

    #[test]
    fn half_answers_are_errors() {
        assert!(answer("").try_response().is_err());
        assert!(answer("HTTP/1.1 200").try_response().is_err());
        assert!(answer("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab").try_response().is_err());
    }
}
