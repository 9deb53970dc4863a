//! Which frames leave together over TLS. A client may take a whole record before it looks at what came.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use weir_proto::http2::frame::{self, FrameHead, FrameType};
use weir_testkit::{PATIENCE, Server, certified, listen};

use super::WEIR;
use super::anybody::Anybody;

/// A client that takes one record of TLS at a time.
struct Records {
    tls: ClientConnection,
    socket: TcpStream,
}

impl Records {
    fn connect(port: u16) -> Records {
        let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody::default()))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from("www.example.org").unwrap();
        let tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut client = Records { tls, socket };
        while client.tls.is_handshaking() {
            client.next();
        }
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        self.tls.writer().write_all(bytes).unwrap();
        self.write_out();
    }

    fn write_out(&mut self) {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket).unwrap();
        }
    }

    /// What the next record holds.
    fn next(&mut self) -> Vec<u8> {
        self.write_out();
        let mut record = vec![0; 5];
        self.socket.read_exact(&mut record).unwrap();
        let len = usize::from(u16::from_be_bytes([record[3], record[4]]));
        record.resize(5 + len, 0);
        self.socket.read_exact(&mut record[5..]).unwrap();
        self.tls.read_tls(&mut record.as_slice()).unwrap();
        self.tls.process_new_packets().unwrap();
        let mut text = Vec::new();
        // An error only says that there is no more yet.
        let _ = self.tls.reader().read_to_end(&mut text);
        text
    }

    /// The kinds of a stream's frames, record by record, up to its reset.
    fn kinds(&mut self, stream: u32) -> Vec<Vec<FrameType>> {
        let (mut records, mut bytes) = (Vec::new(), Vec::new());
        loop {
            bytes.extend(self.next());
            let mut kinds = Vec::new();
            while let Some(head) = FrameHead::read(&bytes)
                && bytes.len() >= frame::HEAD + head.len
            {
                bytes.drain(..frame::HEAD + head.len);
                kinds.extend((head.stream == stream).then_some(head.kind));
            }
            let over = kinds.contains(&FrameType::RstStream);
            records.push(kinds);
            if over {
                return records;
            }
        }
    }
}

/// A server, and another behind it that breaks its answers off.
fn start() -> Server {
    let breaks_off = listen(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfour");
    });
    let conf = format!(
        "user root; events {{ }}
         http {{ ssl_certificate chain.pem; ssl_certificate_key leaf.key; http2 on; server {{
            listen 127.0.0.1:%%PORT%% ssl; client_max_body_size 20m;
            location / {{ return 403; }}
            location /large {{ client_max_body_size 10m; return 200; }}
            location /secret {{ auth_basic secret; auth_basic_user_file /dev/null; }}
            location /breaks {{ proxy_pass http://127.0.0.1:{breaks_off}; }}
         }} }}"
    );
    Server::start_in(certified(), WEIR, &conf)
}

#[test]
fn a_reset_has_a_record_of_its_own() {
    let server = start();
    for (method, path, body) in [("PUT", "/", 3), ("GET", "/breaks", 0)] {
        let mut client = Records::connect(server.port());
        let mut out = frame::PREFACE.to_vec();
        frame::write_settings(&[], &mut out);
        let id = 1;
        super::write_head(id, method, path, &[], body == 0, &mut out);
        for _ in 0..body {
            FrameHead { len: 5, kind: FrameType::Data, flags: 0, stream: id }.write(&mut out);
            out.extend_from_slice(b"piece");
        }
        client.send(&out);
        let records = client.kinds(id);
        assert_eq!(records.last().unwrap(), &[FrameType::RstStream], "{path}: {records:?}");
        assert!(records.concat().contains(&FrameType::Data), "{path}: {records:?}");
    }
}

#[test]
fn curl_hears_why_its_upload_is_refused() {
    let server = start();
    let body = server.dir().path().join("body");
    std::fs::File::create(&body).unwrap().set_len(12_000_000).unwrap();
    let curl = |path: &str, args: &[&str]| {
        let url = format!("https://127.0.0.1:{}{path}", server.port());
        let mut curl = Command::new("curl");
        curl.args(["-sk", "--http2", "-w", "%{http_code}"]).args(args).arg(url);
        curl.output().ok().map(|out| String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let file = body.to_string_lossy();
    for (path, status) in [("/", "403"), ("/large", "413"), ("/secret", "401")] {
        for _ in 0..5 {
            let Some(said) = curl(path, &["-o", "/dev/null", "-T", &file]) else {
                eprintln!("not tried: curl is missing");
                return;
            };
            assert_eq!(said, status, "{path}");
        }
    }
    assert_eq!(curl("/breaks", &[]).unwrap(), "four200");
}
