//! The server behind weir and nginx: it answers with what it was asked, and notes it byte by byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// It listens for as long as the process lives.
#[derive(Clone)]
pub struct Back {
    /// As configurations name it.
    pub address: String,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Back {
    pub fn start() -> Back {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port for the server behind");
        let address = listener.local_addr().expect("its address").to_string();
        let back = Back { address, heard: Arc::default() };
        let own = back.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = own.clone();
                thread::spawn(move || drop(own.serve(stream)));
            }
        });
        back
    }

    /// What it was asked since this was called last.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.heard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        // A request without its body is a difference that shows as a 502.
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut stream = stream;
        while let Some(asked) = Asked::read(&mut reader)? {
            let heard = format!("{}\n{}\n", asked.head.replace('\r', ""), asked.body);
            let noted = format!("{}\r\n{}", asked.head, asked.body);
            self.heard.lock().unwrap_or_else(PoisonError::into_inner).push(noted);
            stream.write_all(answer(&asked.head, &heard, &self.address).as_bytes())?;
            if !asked.head.contains("HTTP/1.1")
                || asked.head.contains("Connection: close")
                || asked.head.contains("up=cut")
            {
                break;
            }
        }
        Ok(())
    }
}

struct Asked {
    /// Lines with their ends.
    head: String,
    /// As it came: chunks are written as chunks.
    body: String,
}

impl Asked {
    fn read(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<Asked>> {
        let mut head = String::new();
        let (mut length, mut chunked) = (0, false);
        loop {
            let mut line = Vec::new();
            if reader.read_until(b'\n', &mut line)? == 0 {
                return Ok(None);
            }
            let line = String::from_utf8_lossy(&line);
            if line == "\r\n" {
                break;
            }
            if let Some(value) = line.strip_prefix("Content-Length: ") {
                length = value.trim().parse().unwrap_or(0);
            }
            chunked |= line.starts_with("Transfer-Encoding: chunked");
            head += &line;
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        while chunked && !body.ends_with(b"0\r\n\r\n") {
            let mut byte = [0];
            reader.read_exact(&mut byte)?;
            body.push(byte[0]);
        }
        Ok(Some(Asked { head, body: String::from_utf8_lossy(&body).into_owned() }))
    }
}

fn answer(head: &str, heard: &str, own: &str) -> String {
    let (status, more) = if head.contains("up=404") {
        ("404 Not Found", String::new())
    } else if head.contains("up=500") {
        ("500 Odd Words", String::new())
    } else if head.contains("up=move") {
        ("302 Found", format!("Location: http://{own}/up/there?x\r\n"))
    } else if head.contains("up=accel") {
        ("200 OK", "X-Accel-Redirect: /p/b.txt?from=up\r\n".to_owned())
    } else if head.contains("up=stale") {
        let lines = "X-Accel-Expires: @1\r\nLast-Modified: Sun, 13 Sep 2020 12:26:40 GMT\r\n";
        ("200 OK", lines.to_owned())
    } else if head.contains("up=wide") {
        ("200 OK", format!("X-Wide: {}\r\n", "w".repeat(3_000)))
    } else if head.contains("up=304") {
        ("304 Not Modified", "ETag: \"up\"\r\n".to_owned())
    } else if head.contains("up=odd") {
        let lines = "X-Accel-Charset: koi8-r\r\nX-Accel-Buffering: no\r\nVary: Cookie\r\n\
            Refresh: 5; url=/up/next\r\nCache-Control: max-age=5\r\nCache-Control: private\r\n";
        ("203 Other", lines.to_owned())
    } else {
        ("200 OK", "Last-Modified: Sun, 13 Sep 2020 12:26:40 GMT\r\n".to_owned())
    };
    if head.contains("up=trailers") {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n";
        return format!("{head}1\r\nx\r\n0\r\nX-T: end\r\n\r\n");
    }
    let charset = if head.contains("up=charset") { "; charset=windows-1251" } else { "" };
    let early = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n";
    let early = if head.contains("up=early") { early } else { "" };
    // An answer that breaks off is shorter than it says.
    let length = heard.len() + if head.contains("up=cut") { 9 } else { 0 };
    let none = head.starts_with("HEAD ") || status.starts_with("304");
    let body = if none { "" } else { heard };
    format!(
        "{early}HTTP/1.1 {status}\r\nContent-Type: text/plain{charset}\r\nContent-Length: {length}\r\nX-Up: yes\r\n\
         Set-Cookie: a=b; Path=/up/; Domain=up.example\r\nServer: behind\r\n{more}\r\n{body}"
    )
}
