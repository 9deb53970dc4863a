//! Servers behind, for the tests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use weir_testkit::{NameRecord, NameReply};

/// One connection of a server in this test.
pub struct Talk {
    pub reader: BufReader<TcpStream>,
    /// Which connection it is, from 0.
    pub number: usize,
}

impl Talk {
    /// The next request's head; empty at the end.
    pub fn head(&mut self) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.reader.read_line(&mut head).unwrap_or(0) == 0 {
                break;
            }
        }
        head
    }

    pub fn body(&mut self, len: usize) -> String {
        let mut body = vec![0; len];
        self.reader.read_exact(&mut body).unwrap();
        String::from_utf8(body).unwrap()
    }

    pub fn say(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.reader.get_mut().write_all(bytes.as_ref());
    }

    pub fn ok(&mut self, body: &str) {
        self.say(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    }
}

/// A server that treats each connection by `serve`; its port.
pub fn upstream(serve: impl Fn(&mut Talk) + Send + Sync + 'static) -> u16 {
    // Numbered as they are accepted, which testkit's `listen` does not tell.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (serve, stream) = (serve.clone(), stream.unwrap());
            thread::spawn(move || serve(&mut Talk { reader: BufReader::new(stream), number }));
        }
    });
    port
}

/// A server that answers each request with its head and the number of the connection.
pub fn echo() -> u16 {
    upstream(|talk| {
        loop {
            let head = talk.head();
            if head.is_empty() {
                return;
            }
            let text = format!("connection {}\r\n{head}", talk.number);
            talk.ok(&text);
        }
    })
}

/// A name server that knows `up.test` as 127.0.0.1 and no other name; its port.
pub fn name_server() -> u16 {
    weir_testkit::name_server(|name| match name {
        "up.test" => NameReply::Records(60, vec![NameRecord::Address(Ipv4Addr::LOCALHOST)]),
        _ => NameReply::NoSuchName,
    })
}
