//! Each place that reads or writes as long as there are bytes: its work at line rate.

use std::path::Path;

use weir_testkit::Dir;

use crate::flood::Target;
use crate::sources::Sources;

/// A place, and the peer that keeps it busy.
pub struct Place {
    pub name: &'static str,
    pub clients: usize,
    pub flood: fn(&Target<'_>),
}

pub fn write(dir: &Dir) {
    dir.write("large", vec![b'x'; 32 << 20]);
    for n in 0..2000 {
        dir.write(&format!("many/a file with a name {n}"), "");
    }
    dir.write("picture.png", picture());
    dir.write("text.html", "some text of a page\n".repeat(100_000));
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    let read = |file: &str| std::fs::read(data.join(file)).expect("a certificate");
    dir.write("chain.pem", [read("leaf.pem"), read("inter.pem")].concat());
    dir.write("leaf.key", read("leaf.key"));
}

pub fn conf(sources: &Sources) -> String {
    let Sources { http, http2, fastcgi, memcached, echo, names } = sources;
    format!(
        "worker_processes 1; events {{ worker_connections 2000; }}
         http {{
             access_log off; error_log %%DIR%%/http.log crit; default_type text/html; root %%DIR%%; client_max_body_size 0;
             keepalive_requests 1000000000; proxy_http_version 1.1; proxy_max_temp_file_size 0;
             proxy_next_upstream off; fastcgi_max_temp_file_size 0;
             resolver 127.0.0.1:{names} ipv6=off; resolver_timeout 1s;
             ssl_certificate %%DIR%%/chain.pem; ssl_certificate_key %%DIR%%/leaf.key;
             server {{
                 listen 127.0.0.1:%%PORT%%; listen 127.0.0.1:%%PORT1%% ssl; http2 on;
                 location = /ok {{ return 200 ok; }}
                 location /sent {{ alias %%DIR%%/large; sendfile on; }}
                 location /read {{ alias %%DIR%%/large; sendfile off; }}
                 location /gzip {{ alias %%DIR%%/text.html; gzip on; gzip_comp_level 6; }}
                 location /sub {{ alias %%DIR%%/text.html; sub_filter text TEXT; sub_filter_once off; }}
                 location /list/ {{ alias %%DIR%%/many/; autoindex on; }}
                 location /table/ {{ alias %%DIR%%/many/; TABLE on; }}
                 location /picture {{ alias %%DIR%%/picture.png; PICTURE }}
                 location /p/ {{ proxy_pass http://127.0.0.1:{http}; }}
                 location /u/ {{
                     proxy_pass http://127.0.0.1:{http}; proxy_buffering off; proxy_request_buffering off;
                 }}
                 location /switch/ {{
                     proxy_pass http://127.0.0.1:{http}; proxy_set_header Upgrade echo;
                     proxy_set_header Connection upgrade;
                 }}
                 location /f/ {{ proxy_pass http://127.0.0.1:{http2}; proxy_http_version 2; }}
                 location /g/ {{ grpc_pass 127.0.0.1:{http2}; }}
                 location /c/ {{ fastcgi_pass 127.0.0.1:{fastcgi}; }}
                 location /m/ {{ set $memcached_key $uri; memcached_pass 127.0.0.1:{memcached}; }}
                 location /n/ {{ proxy_pass http://$arg_n.test:%%PORT%%/ok; }}
             }}
         }}
         stream {{ server {{ listen 127.0.0.1:%%PORT2%%; proxy_pass 127.0.0.1:{echo}; }} }}"
    )
}

/// What a server says where weir has a module that nginx has not: nginx does what is nearest.
pub fn own(conf: &str, weir: bool) -> String {
    let (table, picture) =
        if weir { ("fancyindex", "image_filter resize 100 100;") } else { ("autoindex", "") };
    conf.replace("TABLE", table).replace("PICTURE", picture)
}

/// A picture of a million dots.
fn picture() -> Vec<u8> {
    let mut bytes = Vec::new();
    let dots = image::RgbImage::from_fn(1000, 1000, |x, y| image::Rgb([x as u8, y as u8, 0]));
    let to = &mut std::io::Cursor::new(&mut bytes);
    dots.write_to(to, image::ImageFormat::Png).expect("a picture");
    bytes
}

const fn place(name: &'static str, flood: fn(&Target<'_>)) -> Place {
    Place { name, clients: 2, flood }
}

pub const PLACES: &[Place] = &[
    place("accept", |to| to.knock()),
    place("HTTP/1 requests in a row", |to| to.pour(0, b"", &get("/ok").repeat(1000))),
    place("HTTP/1 body in chunks of a byte, thrown away", |to| pour_chunks(to, "/ok", "1")),
    place("HTTP/1 body in chunks with extensions", |to| pour_chunks(to, "/ok", "1;abcdefgh")),
    place("HTTP/1 body in chunks of a byte, passed on", |to| {
        pour_chunks(to, "/u/upload", "1");
    }),
    place("HTTP/1 body, passed on", |to| {
        let head = b"PUT /u/upload HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000000\r\n\r\n";
        to.pour(0, head, &[b'x'; 65536]);
    }),
    place("files, with sendfile", |to| drink(to, "/sent", 4, 1 << 18)),
    place("files, read", |to| drink(to, "/read", 4, 1 << 18)),
    place("files, to 100 who read slowly", |to| drink(to, "/read", 50, 1 << 14)),
    place("gzip", |to| drink_gzip(to, "/gzip")),
    place("sub_filter", |to| drink(to, "/sub", 4, 1 << 18)),
    place("lists of 2,000 files", |to| drink(to, "/list/", 4, 1 << 18)),
    place("tables of 2,000 files", |to| drink(to, "/table/", 4, 1 << 18)),
    place("pictures, made smaller", |to| drink(to, "/picture", 4, 1 << 18)),
    place("HTTP/2 requests", |to| pour_frames(to, &requests(&[]), true)),
    place("HTTP/2 requests, reset at once", |to| {
        pour_frames(to, &requests(&frame(3, 0, 1, &[0, 0, 0, 8])), true);
    }),
    place("HTTP/2 PING", |to| pour_frames(to, &frame(6, 0, 0, &[0; 8]), false)),
    place("HTTP/2 SETTINGS", |to| pour_frames(to, &frame(4, 0, 0, b""), false)),
    place("HTTP/2 WINDOW_UPDATE", |to| pour_frames(to, &frame(8, 0, 0, &[0, 0, 0, 1]), false)),
    place("HTTP/2 PRIORITY", |to| pour_frames(to, &frame(2, 0, 3, &[0, 0, 0, 0, 1]), false)),
    place("HTTP/2 DATA without data", |to| {
        let first = [preface(), head(1, 4)].concat();
        to.pour(0, &first, &frame(0, 0, 1, b"").repeat(4096));
    }),
    place("HTTP/2 CONTINUATION without an end", |to| {
        let first = [preface(), head(1, 0)].concat();
        to.pour(0, &first, &frame(9, 0, 1, b"").repeat(4096));
    }),
    place("TLS handshakes", |to| to.shake_hands()),
    place("TLS records of a byte", |to| {
        to.pour_records(b"PUT /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000000\r\n\r\n");
    }),
    place("a server's answer", |to| drink(to, "/p/", 2, 1 << 18)),
    place("a server's answer, not buffered", |to| drink(to, "/u/", 2, 1 << 18)),
    place("a server's chunks of a byte", |to| drink(to, "/p/chunks", 2, 1 << 18)),
    place("a server's chunks of a byte, not buffered", |to| drink(to, "/u/chunks", 2, 1 << 18)),
    place("a server's chunks with extensions", |to| drink(to, "/p/extensions", 2, 1 << 18)),
    place("a server's trailers", |to| drink(to, "/p/trailers", 2, 1 << 18)),
    place("a server's 100 Continue", |to| drink(to, "/p/hints", 2, 1 << 18)),
    place("a tunnel", |to| drink(to, "/switch/", 2, 1 << 18)),
    place("a server's HTTP/2 frames", |to| drink(to, "/f/", 2, 1 << 18)),
    place("a server's gRPC frames", |to| drink(to, "/g/", 2, 1 << 18)),
    place("FastCGI records of a byte", |to| drink(to, "/c/", 2, 1 << 18)),
    place("memcached values", |to| drink(to, "/m/", 2, 1 << 18)),
    place("a name server's answers", |to| {
        let ask = |n| get(&format!("/n/?n=a{n}b{}", to.server.pid()));
        to.drink(ask, 2, 1 << 18);
    }),
    place("stream", |to| to.pour(2, b"", &[b'x'; 65536])),
    place("stream, in pieces", |to| to.pour(2, b"", &[b'x'; 16])),
];

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes()
}

fn pour_chunks(to: &Target<'_>, path: &str, line: &str) {
    let head = format!("PUT {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    to.pour(0, head.as_bytes(), format!("{line}\r\nx\r\n").repeat(4096).as_bytes());
}

fn drink(to: &Target<'_>, path: &str, connections: usize, piece: usize) {
    let ask = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    to.drink(|_| ask.clone().into_bytes(), connections, piece);
}

fn drink_gzip(to: &Target<'_>, path: &str) {
    let coding = "Accept-Encoding: gzip\r\nConnection: close";
    let ask = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{coding}\r\n\r\n");
    to.drink(|_| ask.clone().into_bytes(), 4, 1 << 18);
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (payload.len() as u16).to_be_bytes();
    let head = [0, high, low, kind, flags];
    [&head[..], &stream.to_be_bytes(), payload].concat()
}

fn preface() -> Vec<u8> {
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, b"")].concat()
}

/// GET or, where the stream does not end, POST of `/ok`.
fn head(stream: u32, flags: u8) -> Vec<u8> {
    let method = if flags & 1 == 1 { 0x82 } else { 0x83 };
    let mut block = vec![method, 0x86, 0x04, 3];
    block.extend_from_slice(b"/ok\x01\x01a");
    frame(1, flags, stream, &block)
}

/// A few thousand requests, each followed by `and`, which is for its stream.
fn requests(and: &[u8]) -> Vec<u8> {
    let each = |n: u32| {
        let stream = n * 2 + 1;
        let mut and = and.to_vec();
        if let Some(place) = and.get_mut(5..9) {
            place.copy_from_slice(&stream.to_be_bytes());
        }
        [head(stream, 5), and].concat()
    };
    (0..20_000).flat_map(each).collect()
}

/// A connection with these frames; again and again, or on new connections.
fn pour_frames(to: &Target<'_>, frames: &[u8], anew: bool) {
    if anew {
        to.pour_once(0, &[&preface(), frames].concat());
    } else {
        to.pour(0, &preface(), &frames.repeat(4096));
    }
}
