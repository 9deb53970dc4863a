//! Other HTTP/2 servers: nginx, where there is one (`$WEIR_NGINX`, or `nginx` on the path), and
//! weir's own server side.

use weir_testkit::{Client, Dir, Oracle, Server};

use super::WEIR;
use crate::bodies::certified;

/// Programs that serve HTTP/2.
fn programs() -> Vec<String> {
    let mut all = vec![WEIR.to_owned()];
    match Oracle::find().filter(|nginx| nginx.minor() >= 25 && nginx.has("http_v2_module")) {
        Some(nginx) => all.push(nginx.path),
        None => println!("not run: no nginx with HTTP/2"),
    }
    all
}

const SERVED: &str = "
    server {
        listen 127.0.0.1:%%PORT%%;
        listen 127.0.0.1:%%PORT1%% ssl;
        ssl_certificate self.pem; ssl_certificate_key self.key;
        http2 on;
        root html;
        client_max_body_size 0;
        location /said {
            return 200 \"$http2 $ssl_alpn_protocol $request_method $host $args $http_x $http_te $connection\";
        }
        location /body { proxy_pass http://127.0.0.1:%%PORT2%%; client_body_buffer_size 1k; }
        location /trailers { add_trailer X-Sum $status; alias html/; }
        location /missing { return 404; }
        location /empty { return 204; }
    }
    server { listen 127.0.0.1:%%PORT2%%; location / { return 200 $content_length; } }";

fn serve(program: &str) -> Server {
    let dir = certified();
    dir.write("html/big", vec![b'b'; 5_000_000]);
    dir.write("html/small", "small");
    Server::start_in(dir, program, &format!("user root; events {{ }} http {{ {SERVED} }}"))
}

fn pass(origin: &Server) -> Server {
    let (clear, secure) = (origin.port(), origin.port_at(1));
    let conf = format!(
        "user root; worker_processes 1; worker_threads 1; events {{ }}
         http {{
             upstream clear {{ server 127.0.0.1:{clear}; keepalive 2; }}
             upstream secure {{ server 127.0.0.1:{secure}; keepalive 2; }}
             proxy_http_version 2; proxy_pass_trailers on; client_max_body_size 0;
             proxy_set_header X yes; proxy_set_header TE trailers;
             proxy_set_header Connection upgrade; proxy_set_header Upgrade websocket;
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 location /clear/ {{ proxy_pass http://clear/; }}
                 location /clear/trailers/ {{
                     proxy_pass http://clear/trailers/; add_trailer X-Own own;
                 }}
                 location /secure/ {{ proxy_pass https://secure/; }}
                 location /streamed/ {{
                     proxy_pass https://secure/; proxy_request_buffering off; proxy_buffering off;
                 }}
                 location /once/ {{ proxy_pass https://127.0.0.1:{secure}/; }}
             }}
         }}"
    );
    Server::start_in(Dir::new(), WEIR, &conf)
}

const WAYS: [&str; 4] = ["clear", "secure", "streamed", "once"];

#[test]
fn answers_come_whole() {
    for program in programs() {
        let origin = serve(&program);
        let server = pass(&origin);
        for way in WAYS {
            let mut client = server.connect();
            let said = client.get(&format!("/{way}/said?a=1")).body();
            let (version, alpn) = if way == "clear" { ("h2c", "") } else { ("h2", "h2") };
            let words: Vec<&str> = said.split(' ').collect();
            let host = if way == "once" { "127.0.0.1" } else { way.trim_end_matches("streamed") };
            let host = if host.is_empty() { "secure" } else { host };
            let expected = [version, alpn, "GET", host, "a=1", "yes", "trailers"];
            assert_eq!(words[..7], expected, "{program} {way}");
            assert_eq!(client.get(&format!("/{way}/big")).bytes.len(), 5_000_000, "{way}");
            assert_eq!(client.get(&format!("/{way}/missing")).status, 404);
            assert_eq!(client.get(&format!("/{way}/empty")).status, 204);
        }
        let trailers = raw(&mut server.connect(), "/clear/trailers/small");
        assert!(trailers.to_lowercase().contains("\r\n0\r\nx-sum: 200\r\n"), "{trailers}");
    }
}

fn raw(client: &mut Client, path: &str) -> String {
    client.send(format!(
        "GET {path} HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: close, te\r\n\r\n"
    ));
    client.rest()
}

#[test]
fn bodies_arrive_whole() {
    let body = vec![b'p'; 1_000_000];
    for program in programs() {
        let origin = serve(&program);
        let server = pass(&origin);
        for way in WAYS {
            let mut client = server.connect();
            for _ in 0..2 {
                client.send(format!(
                    "POST /{way}/body HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"
                ));
                client.send(&body);
                let answer = client.response();
                assert_eq!(answer.body(), "1000000", "{program} {way}: {}", server.log());
            }
        }
    }
}

#[test]
fn a_connection_is_used_again() {
    for program in programs() {
        let origin = serve(&program);
        let server = pass(&origin);
        for way in ["clear", "secure"] {
            let connections: std::collections::HashSet<String> = (0..20)
                .map(|_| server.get(&format!("/{way}/said")).body())
                .map(|said| said.rsplit(' ').next().unwrap_or_default().to_owned())
                .collect();
            assert_eq!(connections.len(), 1, "{program} {way}: {connections:?}");
        }
    }
}

#[test]
fn a_server_that_takes_its_leave_loses_no_request() {
    for program in programs() {
        let dir = certified();
        let conf = format!("user root; events {{ }} http {{ keepalive_requests 5; {SERVED} }}");
        let origin = Server::start_in(dir, &program, &conf);
        let server = pass(&origin);
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let port = server.port();
                std::thread::spawn(move || {
                    let mut client = Client::connect(port);
                    (0..50).filter(|_| client.get("/secure/said").status != 200).count()
                })
            })
            .collect();
        let lost: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(lost, 0, "{program}: {}", server.log());
    }
}
