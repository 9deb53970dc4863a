//! A site that touches files in every possible way, and requests to all of it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use weir_testkit::{Client, Dir, Server, ask_until};

/// The certificate's name.
const NAME: &str = "www.example.org";
/// More than sockets and buffers in memory take.
const LARGE: usize = 6 << 20;

/// The files that it needs.
pub fn dir() -> Dir {
    let dir = Dir::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    for name in ["leaf.pem", "inter.pem", "leaf.key"] {
        dir.write(name, std::fs::read(data.join(name)).unwrap());
    }
    dir.write(&format!("{NAME}.pem"), dir.read("leaf.pem") + &dir.read("inter.pem"));
    dir.write("site/a.txt", "small");
    dir.write("site/a.txt.gz", "not read by this client");
    dir.write("site/large.bin", vec![b'x'; LARGE]);
    dir.write("site/index.html", "index");
    dir.write("site/404.html", "none");
    dir.write("site/page.shtml", "<!--#include virtual=\"/a.txt\" -->");
    let mut picture = Vec::new();
    let dots = image::RgbImage::from_fn(64, 64, |x, y| image::Rgb([x as u8, y as u8, 0]));
    let to = &mut std::io::Cursor::new(&mut picture);
    dots.write_to(to, image::ImageFormat::Png).unwrap();
    dir.write("site/dots.png", picture);
    dir.write("site/list/one", "1");
    dir.write("site/list/two", "2");
    dir.write("users", "me:{PLAIN}secret\n");
    std::fs::create_dir(dir.file("put")).unwrap();
    dir
}

/// Its configuration. With `more`, it is another one.
pub fn conf(more: &str) -> String {
    format!(
        "{more}
         user root;
         worker_processes 1; worker_threads 2; thread_pool mine threads=2;
         events {{ }}
         http {{
             keepalive_requests 1000000;
             log_format short '$uri $status $realpath_root';
             access_log %%DIR%%/access.log short;
             proxy_cache_memory 0; dav_ext_lock_zone zone=locks:1m;
             client_body_temp_path %%DIR%%/bodies 1 2;
             proxy_temp_path %%DIR%%/spool;
             proxy_cache_path %%DIR%%/cache levels=1:2 keys_zone=one:1m inactive=1s
                              manager_sleep=10ms;
             proxy_cache_path %%DIR%%/beside levels=2 keys_zone=two:1m use_temp_path=off
                              max_size=100k min_free=1k;
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 root %%DIR%%/site;
                 error_page 404 /404.html;
                 location / {{ }}
                 location /list/ {{ autoindex on; }}
                 location /table/ {{ alias %%DIR%%/site/list/; fancyindex on; fancyindex_header /a.txt; }}
                 location /picture/ {{ alias %%DIR%%/site/; image_filter resize 4 4; }}
                 location /echo {{ echo_read_request_body; echo_location /a.txt; echo_request_body; }}
                 location = /wipe {{ proxy_cache_purge one /cached/large.bin; }}
                 location /random/ {{ alias %%DIR%%/site/list/; random_index on; }}
                 location /try/ {{ try_files $uri $uri/ /a.txt; }}
                 location /zipped/ {{ alias %%DIR%%/site/; gzip_static always; }}
                 location /kept/ {{ alias %%DIR%%/site/; open_file_cache max=10; open_file_cache_errors on; }}
                 location /links/ {{ alias %%DIR%%/site/; disable_symlinks on; }}
                 location /direct/ {{ alias %%DIR%%/site/; directio 1m; aio threads=mine; }}
                 location /sent/ {{ alias %%DIR%%/site/; sendfile on; }}
                 location /copied/ {{ alias %%DIR%%/site/; sendfile off; output_buffers 2 64k; }}
                 location = /page.shtml {{ ssi on; ssi_types *; }}
                 location /secret/ {{ alias %%DIR%%/site/; auth_basic x; auth_basic_user_file %%DIR%%/users; }}
                 location = /real {{ return 200 $realpath_root; }}
                 location = /if {{ if (-f %%DIR%%/site/$arg_name) {{ return 200 there; }} return 200 gone; }}
                 location /named {{ access_log %%DIR%%/$arg_log.log short; return 204; }}
                 location /put/ {{
                     root %%DIR%%; create_full_put_path on;
                     dav_methods PUT DELETE MKCOL COPY MOVE;
                     dav_ext_methods PROPFIND LOCK UNLOCK; dav_ext_lock zone=locks;
                 }}
                 location /cached/ {{
                     proxy_pass http://127.0.0.1:%%PORT1%%/;
                     proxy_cache one; proxy_cache_valid any 1m; proxy_cache_revalidate on;
                     proxy_cache_lock on; proxy_cache_use_stale updating; proxy_cache_background_update on;
                     proxy_cache_key $uri; proxy_cache_purge $http_x_purge;
                     add_header X-Cache $upstream_cache_status;
                 }}
                 location /full/ {{
                     proxy_pass http://127.0.0.1:%%PORT1%%/;
                     proxy_cache two; proxy_cache_valid any 1m;
                 }}
                 location /sliced/ {{
                     slice 1m; proxy_set_header Range $slice_range; proxy_cache_key $uri$slice_range;
                     proxy_pass http://127.0.0.1:%%PORT1%%/; proxy_cache one; proxy_cache_valid 206 1m;
                 }}
                 location /spooled/ {{ proxy_pass http://127.0.0.1:%%PORT1%%/; }}
                 location /body {{
                     client_max_body_size 20m; client_body_buffer_size 1k;
                     proxy_pass http://127.0.0.1:%%PORT1%%/echo;
                 }}
                 location /file {{ client_body_in_file_only clean; proxy_pass http://127.0.0.1:%%PORT1%%/echo; }}
             }}
             server {{
                 listen 127.0.0.1:%%PORT1%%;
                 root %%DIR%%/site;
                 location / {{ add_header X-Accel-Expires 1; }}
                 location /echo {{ client_max_body_size 20m; client_body_in_file_only off; return 200 heard; }}
             }}
             server {{
                 listen 127.0.0.1:%%PORT2%% ssl;
                 ssl_certificate %%DIR%%/$ssl_server_name.pem; ssl_certificate_key %%DIR%%/leaf.key;
                 root %%DIR%%/site;
             }}
             server {{
                 listen 127.0.0.1:%%PORT3%% ssl;
                 ssl_certificate %%DIR%%/{NAME}.pem; ssl_certificate_key %%DIR%%/leaf.key;
                 root %%DIR%%/site;
             }}
         }}
         stream {{
             log_format short '$remote_addr $status'; access_log %%DIR%%/sessions.log short;
             access_log %%DIR%%/sessions-$server_port.log short;
             server {{ listen 127.0.0.1:%%PORT4%%; proxy_pass 127.0.0.1:%%PORT%%; }}
             server {{
                 listen 127.0.0.1:%%PORT5%% ssl; proxy_pass 127.0.0.1:%%PORT%%;
                 ssl_certificate %%DIR%%/$ssl_server_name.pem; ssl_certificate_key %%DIR%%/leaf.key;
             }}
         }}"
    )
}

/// Asks for everything.
pub fn visit(server: &Server) {
    files(server);
    cached(server);
    bodies(server);
    for port in [server.port_at(2), server.port_at(3), server.port_at(5)] {
        assert!(secure(server, port).ends_with("small"));
    }
    assert_eq!(Client::connect(server.port_at(4)).get("/a.txt").body(), "small");
}

fn files(server: &Server) {
    let mut client = server.connect();
    for (path, status, length) in [
        ("/a.txt", 200, 5),
        ("/large.bin", 200, LARGE),
        ("/", 200, 5),
        ("/none", 404, 4),
        ("/list", 301, 0),
        ("/try/nothing", 200, 5),
        ("/zipped/a.txt", 200, 23),
        ("/kept/a.txt", 200, 5),
        ("/kept/a.txt", 200, 5),
        ("/kept/none", 404, 4),
        ("/links/a.txt", 200, 5),
        ("/links/none", 404, 4),
        ("/direct/large.bin", 200, LARGE),
        ("/sent/large.bin", 200, LARGE),
        ("/copied/large.bin", 200, LARGE),
        ("/if?name=a.txt", 200, 5),
        ("/if?name=none", 200, 4),
    ] {
        let r = client.get(path);
        assert_eq!(r.status, status, "{path}");
        assert!(length == 0 || r.bytes.len() == length, "{path}: {} bytes", r.bytes.len());
    }
    // A client that does not read: what is left of the file is sent in other turns.
    for path in ["/large.bin", "/sent/large.bin"] {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        for _ in 0..4 {
            assert_eq!(server.get("/a.txt").status, 200);
        }
        assert_eq!(client.response().bytes.len(), LARGE, "{path}");
    }
    assert!(client.get("/list/").body().contains("two"));
    let table = client.get("/table/").body();
    assert!(table.starts_with("small") && table.contains("two"), "{table}");
    assert_eq!(client.get("/picture/dots.png").status, 200);
    assert_eq!(client.ask("POST /echo", "Content-Length: 4\r\n", "body").body(), "smallbody");
    assert!(["1", "2"].contains(&client.get("/random/").body().as_str()));
    assert_eq!(client.get("/page.shtml").body(), "small");
    assert!(client.get("/real").body().ends_with("/site"));
    assert_eq!(client.get("/named?log=other").status, 204);
    assert_eq!(client.get("/secret/a.txt").status, 401);
    assert_eq!(
        client.ask("GET /secret/a.txt", "Authorization: Basic bWU6c2VjcmV0\r\n", "").status,
        200
    );
    assert_eq!(client.ask("PUT /put/a/b", "Content-Length: 4\r\n", "body").status, 201);
    assert_eq!(client.ask("MKCOL /put/c/", "", "").status, 201);
    assert_eq!(client.ask("COPY /put/a/b", "Destination: /put/c/d\r\n", "").status, 204);
    assert_eq!(client.ask("MOVE /put/c/d", "Destination: /put/e\r\n", "").status, 204);
    let wish = "<lockinfo xmlns='DAV:'/>";
    let length = format!("Content-Length: {}\r\n", wish.len());
    let locked = client.ask("LOCK /put/c/f", &length, wish);
    assert_eq!(locked.status, 201);
    let token = locked.header("Lock-Token").unwrap();
    let held = format!("If: ({token} [\"other\"]) ({token})\r\nContent-Length: 4\r\n");
    assert_eq!(client.ask("PUT /put/c/f", &held, "body").status, 204);
    assert!(client.ask("PROPFIND /put/c/", "Depth: 1\r\n", "").body().contains("/put/c/f"));
    assert_eq!(client.ask("UNLOCK /put/c/f", &format!("Lock-Token: {token}\r\n"), "").status, 204);
    for path in ["/put/e", "/put/a/", "/put/c/"] {
        assert_eq!(
            client.ask(&format!("DELETE {path}"), "Depth: infinity\r\n", "").status,
            204,
            "{path}"
        );
    }
}

/// Sends a request, and says what became of it.
/// Misses, hits, things too old that are asked about anew, and what is taken out again.
fn cached(server: &Server) {
    let mut client = server.connect();
    for path in ["/cached/a.txt", "/cached/large.bin", "/sliced/large.bin"] {
        for _ in 0..3 {
            assert_eq!(client.get(path).status, 200, "{path}");
        }
    }
    let mut seen = Vec::new();
    while !["EXPIRED", "REVALIDATED", "STALE"].iter().any(|s| seen.iter().any(|x| x == s)) {
        let r = client.get("/cached/a.txt");
        seen.push(r.header("X-Cache").unwrap_or_default().to_owned());
    }
    for n in 0..6 {
        // More than there is room for.
        assert_eq!(client.get(&format!("/full/large.bin?{n}")).status, 200);
    }
    while client.ask("GET /cached/a.txt", "X-Purge: 1\r\n", "").status != 204 {
        client.get("/cached/a.txt");
    }
    client.get("/cached/large.bin");
    assert!([200, 412].contains(&client.get("/wipe").status));
    let all = client.ask("GET /cached/*", "X-Purge: 1\r\n", "").status;
    assert!([204, 404].contains(&all), "{all}");
}

/// Bodies that do not stay in memory, on their way to servers and from them.
fn bodies(server: &Server) {
    let mut client = server.connect();
    let body = "b".repeat(300_000);
    let length = format!("Content-Length: {}\r\n", body.len());
    assert_eq!(client.ask("POST /body", &length, &body).status, 200);
    assert_eq!(client.ask("POST /file", "Content-Length: 4\r\n", "body").status, 200);
    // This one does not read before the answer is in a file.
    client.send("GET /spooled/large.bin HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(ask_until(|| opened(server, "/spool/")));
    assert_eq!(client.response().bytes.len(), LARGE);
}

/// Whether a worker has a file in this directory open.
fn opened(server: &Server, directory: &str) -> bool {
    let files = |pid| std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut all = server.workers().into_iter().flat_map(files);
    all.any(|fd| {
        let behind = std::fs::read_link(fd.path());
        behind.is_ok_and(|path| path.to_string_lossy().contains(directory))
    })
}

/// Asks for a file over TLS.
fn secure(server: &Server, port: u16) -> String {
    let mut roots = RootCertStore::empty();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata/root.pem");
    roots.add(CertificateDer::from_pem_file(root).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(NAME).unwrap();
    let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut tls = StreamOwned::new(connection, socket);
    tls.write_all(b"GET /a.txt HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    // The server may close without a word of TLS.
    let read = tls.read_to_string(&mut answer);
    assert!(read.is_ok() || !answer.is_empty(), "{read:?}:\n{}", server.log());
    answer
}
