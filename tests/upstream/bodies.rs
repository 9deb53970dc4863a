//! Bodies of requests on their way to servers.

use std::path::Path;

use weir_testkit::{Dir, Server};

use super::WEIR;

/// A directory with a certificate for anybody.
pub fn certified() -> Dir {
    let dir = Dir::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    for name in ["self.pem", "self.key"] {
        dir.write(name, std::fs::read(data.join(name)).unwrap());
    }
    dir
}

#[test]
fn a_body_in_a_file_goes_out_over_tls() {
    let conf = "user root; events { }
         http {
             client_max_body_size 0; proxy_buffer_size 64k; proxy_buffers 4 64k;
             server {
                 listen 127.0.0.1:%%PORT%%;
                 client_body_in_file_only clean;
                 location / { proxy_pass https://127.0.0.1:%%PORT1%%; }
             }
             server {
                 listen 127.0.0.1:%%PORT1%% ssl;
                 ssl_certificate self.pem; ssl_certificate_key self.key;
                 client_body_buffer_size 1m;
                 add_header X-Body $request_body always;
                 location / { proxy_pass http://127.0.0.1:%%PORT2%%; }
             }
             server { listen 127.0.0.1:%%PORT2%%; return 204; }
         }";
    let server = Server::start_in(certified(), WEIR, conf);
    let body: String = (0..40_000).map(|n| char::from(b'a' + (n % 26) as u8)).collect();
    let mut client = server.connect();
    let len = body.len();
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n{body}"));
    let answer = client.response();
    assert_eq!(answer.status, 204, "{}", server.log());
    assert_eq!(answer.header("X-Body"), Some(body.as_str()));
}
