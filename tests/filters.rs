//! Bodies that are changed on their way out.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use weir_testkit::{Dir, Response, Server, listen};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A server with a page of 100 KiB, and this in its server block.
fn serving(more: &str) -> Server {
    let dir = Dir::new();
    dir.write("page.html", page());
    dir.write("small.html", "small");
    dir.write("page.txt", page());
    let conf = format!(
        "events {{}}
         http {{
             access_log off;
             types {{ text/html html; text/plain txt; }}
             charset_map koi8-r utf-8 {{ C0 D18E; }}
             server {{ listen 127.0.0.1:%%PORT%%; root %%DIR%%; {more} }}
         }}"
    );
    Server::start_in(dir, WEIR, &conf)
}

fn page() -> String {
    (0..12_800).map(|n| format!("{n:7}\n")).collect()
}

/// Asks with more header lines.
fn ask(server: &Server, target: &str, headers: &str) -> Response {
    server.ask(&format!("GET {target}"), headers, "")
}

fn gunzip(answer: &Response) -> String {
    let mut out = String::new();
    flate2::read::GzDecoder::new(answer.bytes.as_slice()).read_to_string(&mut out).unwrap();
    out
}

#[test]
fn answers_to_proxies_are_coded_by_words_in_any_case() {
    let server = serving("gzip on; gzip_types text/plain; gzip_proxied No-Store NO_ETAG;");
    let headers = "Accept-Encoding: gzip\r\nVia: 1.1 a\r\n";
    assert_eq!(ask(&server, "/page.html", headers).header("Content-Encoding"), None);
    let server = serving("gzip on; gzip_proxied ANY;");
    assert_eq!(ask(&server, "/page.html", headers).header("Content-Encoding"), Some("gzip"));
}

#[test]
fn answers_are_compressed_for_clients_that_accept_it() {
    let server = serving("gzip on; gzip_vary on; brotli on; zstd on;");
    let answer = ask(&server, "/page.html", "Accept-Encoding: gzip\r\n");
    assert_eq!(answer.header("Content-Encoding"), Some("gzip"));
    assert_eq!(answer.header("Vary"), Some("Accept-Encoding"));
    assert_eq!(answer.header("Content-Length"), None);
    assert_eq!(answer.header("Accept-Ranges"), None);
    assert!(answer.header("ETag").unwrap().starts_with("W/\""));
    assert!(answer.bytes.len() < 50_000);
    assert_eq!(gunzip(&answer), page());

    let answer = ask(&server, "/page.html", "Accept-Encoding: gzip, br, zstd\r\n");
    assert_eq!(answer.header("Content-Encoding"), Some("br"));
    let mut back = Vec::new();
    brotli::BrotliDecompress(&mut answer.bytes.as_slice(), &mut back).unwrap();
    assert_eq!(String::from_utf8(back).unwrap(), page());

    let answer = ask(&server, "/page.html", "Accept-Encoding: gzip, zstd\r\n");
    assert_eq!(answer.header("Content-Encoding"), Some("zstd"));
    let back = zstd::decode_all(answer.bytes.as_slice()).unwrap();
    assert_eq!(String::from_utf8(back).unwrap(), page());

    for headers in ["", "Accept-Encoding: gzip;q=0\r\n"] {
        let answer = ask(&server, "/page.html", headers);
        assert_eq!(answer.header("Content-Encoding"), None);
        assert_eq!(answer.header("Vary"), Some("Accept-Encoding"));
        assert_eq!(answer.body(), page());
    }
}

/// The most memory that the worker has had, in kB.
fn peak(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.workers()[0])).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_small_answer_takes_little_memory_to_compress() {
    let levels = (1..=6).map(|level| {
        format!("location /{level}/ {{ alias %%DIR%%/; brotli_comp_level {level}; zstd_comp_level {level}; }}\n")
    });
    let on =
        "brotli on; brotli_min_length 1; zstd on; zstd_min_length 1; gzip on; gzip_min_length 1;";
    let server = serving(&format!("{on} {}", levels.collect::<String>()));
    assert_eq!(ask(&server, "/1/small.html", "").body(), "small");
    let before = peak(&server);
    for coding in ["gzip", "br", "zstd"] {
        for level in 1..=6 {
            let target = format!("/{level}/small.html");
            let answer = ask(&server, &target, &format!("Accept-Encoding: {coding}\r\n"));
            assert_eq!(answer.header("Content-Encoding"), Some(coding));
        }
        let after = peak(&server);
        assert!(after < before + 16 * 1024, "{coding}: {before} kB before, {after} after");
    }
    for coding in ["br", "zstd"] {
        let coded = |level| {
            ask(&server, &format!("/{level}/page.html"), &format!("Accept-Encoding: {coding}\r\n"))
        };
        assert_ne!(coded(1).bytes, coded(6).bytes, "{coding}");
    }
}

#[test]
fn what_is_not_worth_it_is_not_compressed() {
    let server = serving("gzip on;");
    let gzip = "Accept-Encoding: gzip\r\n";
    for (target, headers) in [
        ("/small.html", gzip.to_owned()),
        ("/page.txt", gzip.to_owned()),
        ("/page.html", format!("{gzip}Via: 1.1 proxy\r\n")),
    ] {
        let answer = ask(&server, target, &headers);
        assert_eq!(answer.header("Content-Encoding"), None, "{target}");
        assert!(answer.header("Content-Length").is_some());
    }
}

/// gzip allows any number of members in a file.
#[test]
fn members_of_a_byte_take_little_memory_to_unpack() {
    let server = serving("gzip_static always; gunzip on;");
    let mut member = GzEncoder::new(Vec::new(), Compression::fast());
    member.write_all(b"a").unwrap();
    let member = member.finish().unwrap();
    server.dir().write("page.html.gz", member.repeat(20_000));
    assert_eq!(ask(&server, "/small.html", "").body(), "small");
    let before = peak(&server);
    assert!(ask(&server, "/page.html", "").body() == "a".repeat(20_000));
    let after = peak(&server);
    assert!(after < before + 16 * 1024, "{before} kB before, {after} after");
}

#[test]
fn compressed_neighbours_are_sent_and_unpacked() {
    let server = serving(
        "location / { gzip_static on; gzip_vary on; }
         location /all/ { alias %%DIR%%/; gzip_static always; gunzip on; }",
    );
    let mut coded = Vec::new();
    flate2::read::GzEncoder::new(page().as_bytes(), flate2::Compression::fast())
        .read_to_end(&mut coded)
        .unwrap();
    server.dir().write("page.html.gz", &coded);
    let gzip = "Accept-Encoding: gzip\r\n";
    let answer = ask(&server, "/page.html", gzip);
    assert_eq!(answer.header("Content-Encoding"), Some("gzip"));
    assert_eq!(answer.header("Content-Type"), Some("text/html"));
    assert_eq!(answer.bytes, coded);
    let answer = ask(&server, "/page.html", "");
    assert_eq!(answer.header("Vary"), Some("Accept-Encoding"));
    assert_eq!(answer.body(), page());
    assert_eq!(ask(&server, "/small.html", gzip).body(), "small");

    assert_eq!(ask(&server, "/all/page.html", gzip).bytes, coded);
    let answer = ask(&server, "/all/page.html", "");
    assert_eq!(answer.header("Content-Encoding"), None);
    assert_eq!(answer.body(), page());
}

#[test]
fn other_codings_have_neighbours_and_types_of_their_own() {
    let server = serving(
        "location / { brotli_static on; zstd_static on; }
         location /coded/ {
             alias %%DIR%%/; brotli on; brotli_types text/plain; brotli_min_length 1;
             zstd on; zstd_types text/plain; zstd_min_length 1;
         }",
    );
    for (coding, end) in [("br", "br"), ("zstd", "zst")] {
        let takes = format!("Accept-Encoding: {coding}\r\n");
        assert_eq!(ask(&server, "/page.html", &takes).header("Content-Encoding"), None);
        server.dir().write(&format!("page.html.{end}"), coding);
        let answer = ask(&server, "/page.html", &takes);
        assert_eq!(answer.header("Content-Encoding"), Some(coding));
        assert_eq!(
            (answer.body().as_str(), answer.header("Content-Type")),
            (coding, Some("text/html"))
        );
        let answer = ask(&server, "/coded/page.txt", &takes);
        assert_eq!(answer.header("Content-Encoding"), Some(coding));
        assert_eq!(ask(&server, "/page.txt", &takes).header("Content-Encoding"), None);
    }
}

#[test]
fn texts_are_replaced_all_over_a_file() {
    let server = serving(
        "location / { sub_filter '  12799' end; sub_filter '      0' $uri; }
         location /all/ { alias %%DIR%%/; sub_filter_once off; sub_filter_types *; sub_filter 1 ''; }",
    );
    let changed = page().replacen("      0", "/page.html", 1).replace("  12799", "end");
    let answer = ask(&server, "/page.html", "");
    assert_eq!(answer.body(), changed);
    assert_eq!(answer.header("Last-Modified"), None);
    assert_eq!(ask(&server, "/page.txt", "").body(), page());
    assert_eq!(ask(&server, "/all/page.txt", "").body(), page().replace('1', ""));
}

#[test]
fn filters_stand_in_nginxs_order() {
    let server = serving(
        r#"ssi on; gzip on;
           location = /a { return 200 ""; }
           location = /b { default_type text/html; sub_filter B '<!--#echo var="uri" -->'; add_after_body /c; return 200 'B<!--#include virtual="/c" -->'; }
           location = /c { default_type text/html; sub_filter x y; return 200 xB; }"#,
    );
    let answer = ask(&server, "/b", "Accept-Encoding: gzip\r\n");
    assert_eq!(gunzip(&answer), "/byByB");
}

#[test]
fn what_filters_keep_of_a_body_stands_before_the_added_one() {
    let server = serving(
        r#"default_type text/html; add_after_body /added;
           location = /sub { sub_filter aab X; return 200 "hello aa"; }
           location = /ssi { ssi on; return 200 "hello <!-"; }
           location = /charset { charset koi8-r; source_charset utf-8; alias %%DIR%%/cut; }
           location = /added { charset koi8-r; sub_filter aab X; return 200 "b aab "; }"#,
    );
    server.dir().write("cut", b"hello \xd1");
    let mut client = server.connect();
    assert_eq!(client.get("/sub").body(), "hello aab X ");
    assert_eq!(client.get("/ssi").body(), "hello <!-b X ");
    assert_eq!(client.get("/charset").body(), "hello ?b X ");
}

/// Of gzip that is cut off, and of gzip with an error in it.
#[test]
fn what_could_be_unpacked_is_sent() {
    let mut zipped = GzEncoder::new(Vec::new(), Compression::best());
    zipped.write_all(page().as_bytes()).unwrap();
    let zipped = zipped.finish().unwrap();
    let cut = zipped[..zipped.len() - 9].to_vec();
    let small = zipped[..100].to_vec();
    let mut spoilt = zipped;
    let from = spoilt.len() / 2;
    spoilt[from..].fill(0xff);
    for (packed, least) in [(cut, 102_400), (small, 200), (spoilt, 40_000)] {
        let port = listen(move |mut stream| {
            let _ = stream.read(&mut [0; 4096]);
            let head = format!("Content-Encoding: gzip\r\nContent-Length: {}", packed.len());
            let head = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n");
            let _ = stream.write_all(&[head.as_bytes(), &packed].concat());
        });
        let pass = format!("proxy_pass http://127.0.0.1:{port}/;");
        let server = serving(&format!(
            "chunked_transfer_encoding off; gunzip on;
             location / {{ {pass} }}
             location /unbuffered/ {{ proxy_buffering off; {pass} }}"
        ));
        for path in ["/", "/unbuffered/"] {
            let mut client = server.connect();
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            let answer = client.rest();
            let (_, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(body.get(..least) == page().get(..least), "{path}: {} bytes", body.len());
        }
    }
}

#[test]
fn an_answer_that_cannot_be_unpacked_at_all_has_no_head() {
    let port = listen(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let head = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 7";
        let _ = stream.write_all(format!("{head}\r\n\r\nno gzip").as_bytes());
    });
    let server =
        serving(&format!("gunzip on; location / {{ proxy_pass http://127.0.0.1:{port}; }}"));
    for version in ["1.0", "1.1"] {
        let mut client = server.connect();
        client.send(format!("GET / HTTP/{version}\r\nHost: a\r\n\r\n"));
        assert_eq!(client.rest(), "", "HTTP/{version}");
    }
}

#[test]
fn a_large_answer_is_put_together_from_slices() {
    let server = serving(
        "location /slice/ {
             slice 30k;
             proxy_set_header Range $slice_range;
             proxy_pass http://127.0.0.1:%%PORT%%/;
         }
         location = /whole { slice 1k; proxy_set_header X $slice_range; proxy_pass http://127.0.0.1:%%PORT%%/page.txt; }",
    );
    let answer = ask(&server, "/slice/page.txt", "");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("Content-Length"), Some("102400"));
    assert_eq!(answer.body(), page());
    for (range, bytes) in [
        ("0-9", 0..10),
        ("29000-31999", 29_000..32_000),
        ("70000-", 70_000..102_400),
        ("-5", 102_395..102_400),
    ] {
        let answer = ask(&server, "/slice/page.txt", &format!("Range: bytes={range}\r\n"));
        assert_eq!(answer.status, 206, "{range}");
        assert_eq!(answer.body(), page()[bytes], "{range}");
    }
    assert_eq!(ask(&server, "/whole", "").body(), page());
    assert_eq!(ask(&server, "/slice/missing", "").status, 404);
}

#[test]
fn a_range_of_slices_that_change_meanwhile_gets_all() {
    let server = serving(
        "slice 30k; proxy_set_header Range $slice_range; gzip_types *;
         location /zipped/ { gzip on; proxy_pass http://127.0.0.1:%%PORT%%/; }
         location /other/ { sub_filter_types *; sub_filter nobody x; proxy_pass http://127.0.0.1:%%PORT%%/; }",
    );
    // A range of what is changed cannot be had, so the answer is a whole one, from its beginning.
    for range in ["0-", "0-9", "35000-", "35000-35009", "102399-"] {
        let headers = format!("Range: bytes={range}\r\nAccept-Encoding: gzip\r\n");
        let zipped = ask(&server, "/zipped/page.txt", &headers);
        assert_eq!((zipped.status, zipped.header("Content-Encoding")), (200, Some("gzip")));
        assert!(gunzip(&zipped) == page(), "{range}");
        let other = ask(&server, "/other/page.txt", &headers);
        assert!(other.status == 200 && other.body() == page(), "{range}");
    }
}

#[test]
fn a_slice_of_another_version_ends_the_answer() {
    let server = serving(
        "location = /mixed {
             slice 1k;
             proxy_set_header Range $slice_range;
             proxy_pass http://127.0.0.1:%%PORT%%/part/$slice_range;
         }
         location ~ ^/part/bytes=0- { rewrite ^ /page.txt break; }
         location /part/ { return 404; }",
    );
    let mut client = server.connect();
    client.send("GET /mixed HTTP/1.1\r\nHost: a\r\n\r\n");
    let rest = client.rest();
    let (_, body) = rest.split_once("\r\n\r\n").unwrap();
    assert_eq!(body.len(), 1024, "the first slice is sent");
    server.wait_log("unexpected status code 404 in slice response", 1);
}

#[test]
fn types_that_are_named_are_all_that_count() {
    let server = Server::start(
        WEIR,
        "events {} http { default_type text/plain; charset utf-8; charset_types application/x;
             server { listen 127.0.0.1:%%PORT%%;
                 location /plain { return 200; }
                 location /named { default_type application/x; return 200; }
                 location /page { default_type text/html; return 200; } } }",
    );
    let kind = |path: &str| server.get(path).header("Content-Type").map(str::to_owned);
    assert_eq!(kind("/plain").as_deref(), Some("text/plain"));
    assert_eq!(kind("/named").as_deref(), Some("application/x; charset=utf-8"));
    assert_eq!(kind("/page").as_deref(), Some("text/html; charset=utf-8"));
}

/// As nginx has it: a type is what stands before its charset, in whatever form that is said, and it is said once.
#[test]
fn a_charset_that_a_server_says_is_not_said_again() {
    let server = Server::start(
        WEIR,
        "events {} http { charset_map koi8-r utf-8 { C0 D18E; }
             server { listen 127.0.0.1:%%PORT%%; charset utf-8;
                 location / { proxy_pass http://127.0.0.1:%%PORT1%%; }
                 location /over/ { override_charset on; proxy_pass http://127.0.0.1:%%PORT1%%; } }
             server { listen 127.0.0.1:%%PORT1%%; default_type ''; add_header Content-Type $arg_type;
                 return 200 x; } }",
    );
    let kind = |path: &str, kind: &str| {
        let answer = server.get(&format!("{path}?type={kind}"));
        answer.header("Content-Type").map(str::to_owned)
    };
    for said in ["text/html;charset=koi8-r", "text/html;Charset=\"koi8-r\"", "text/html;level=1"] {
        assert_eq!(kind("/", said).as_deref(), Some(said));
    }
    for said in ["text/html;charset=koi8-r", "text/html;Charset=\"koi8-r\""] {
        assert_eq!(kind("/over/", said).as_deref(), Some("text/html; charset=utf-8"));
    }
}

/// As in nginx, filters look at what stands before it. Only a filter for charsets that knows the
/// source names another one.
#[test]
fn a_type_with_an_empty_charset_is_the_type_before_it() {
    const SAID: &str = "text/html; charset=";
    let server = Server::start(
        WEIR,
        "events {} http { charset_map koi8-r utf-8 { C0 D18E; }
             server { listen 127.0.0.1:%%PORT%%; gzip_proxied any; gzip_min_length 1;
                 location /named { charset utf-8; proxy_pass http://127.0.0.1:%%PORT1%%; }
                 location /same { charset utf-8; source_charset utf-8; proxy_pass http://127.0.0.1:%%PORT1%%; }
                 location /new { charset utf-8; source_charset koi8-r; proxy_pass http://127.0.0.1:%%PORT1%%; }
                 location /gzip { gzip on; proxy_pass http://127.0.0.1:%%PORT1%%; }
                 location /ssi { ssi on; proxy_pass http://127.0.0.1:%%PORT1%%; }
                 location /sub { sub_filter page PAGE; proxy_pass http://127.0.0.1:%%PORT1%%; } }
             server { listen 127.0.0.1:%%PORT1%%; default_type '';
                 add_header Content-Type 'text/html; charset=';
                 return 200 'a page: <!--#echo var=\"uri\" -->'; } }",
    );
    for (path, kind, body) in [
        ("/named", SAID, "a page: <!--#echo"),
        ("/same", "text/html; charset=utf-8", "a page: <!--#echo"),
        ("/new", "text/html; charset=utf-8", "a page: <!--#echo"),
        ("/ssi", SAID, "a page: /ssi"),
        ("/sub", SAID, "a PAGE: <!--#echo"),
    ] {
        let answer = server.get(path);
        assert_eq!(answer.header("Content-Type"), Some(kind), "{path}");
        assert!(answer.body().starts_with(body), "{path}: {}", answer.body());
    }
    let answer = server.ask("GET /gzip", "Accept-Encoding: gzip\r\n", "");
    assert_eq!(answer.header("Content-Type"), Some(SAID));
    assert_eq!(answer.header("Content-Encoding"), Some("gzip"));
}

/// As in nginx, a server that names none leaves the charset to the configuration.
#[test]
fn an_empty_charset_of_a_server_overrides_nothing() {
    let port = listen(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let head = "Content-Type: text/html\r\nX-Accel-Charset:\r\nContent-Length: 1";
        let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\nx").as_bytes());
    });
    let server =
        serving(&format!("charset koi8-r; location / {{ proxy_pass http://127.0.0.1:{port}; }}"));
    let answer = server.get("/");
    assert_eq!(answer.header("Content-Type"), Some("text/html; charset=koi8-r"));
}

#[test]
fn an_unset_charset_is_not_named() {
    let server = Server::start(
        WEIR,
        "events {} http { server { listen 127.0.0.1:%%PORT%%; default_type text/plain;
             charset $arg_c; return 200 x; } }",
    );
    let kind = |path: &str| server.get(path).header("Content-Type").map(str::to_owned);
    assert_eq!(kind("/").as_deref(), Some("text/plain"));
    assert_eq!(kind("/?c=x").as_deref(), Some("text/plain; charset=x"));
}

/// Tomcat writes it so, for example. No client would read a second charset behind it.
#[test]
fn a_charset_that_a_server_names_in_its_own_way_is_not_named_twice() {
    let server = Server::start(
        WEIR,
        "events {} http { charset utf-8;
         server { listen 127.0.0.1:%%PORT%%;
             location / { proxy_pass http://127.0.0.1:%%PORT1%%; }
             location /over { override_charset on; proxy_pass http://127.0.0.1:%%PORT1%%/; } }
         server { listen 127.0.0.1:%%PORT1%%; charset off;
             default_type 'text/html;charset=UTF-8'; return 200 x; }
         }",
    );
    let kind = |path| server.get(path).header("Content-Type").map(str::to_owned);
    assert_eq!(kind("/").as_deref(), Some("text/html;charset=UTF-8"));
    assert_eq!(kind("/over").as_deref(), Some("text/html; charset=utf-8"));
}

#[test]
fn answers_are_recoded() {
    let dir = Dir::new();
    dir.write("page.html", "a\u{44e}\u{439}".as_bytes());
    let conf = r"events {}
        http {
            access_log off;
            charset_map koi8-r utf-8 { C0 D18E; }
            source_charset utf-8;
            server {
                listen 127.0.0.1:%%PORT%%;
                root %%DIR%%;
                charset koi8-r;
                location /utf/ { alias %%DIR%%/; charset utf-8; }
                location /ssi/ { alias %%DIR%%/; ssi on; charset utf-8; }
            }
        }";
    dir.write(
        "include.html",
        r#"<!--#include virtual="/page.html" --><!--#include virtual="/utf/page.html" -->"#,
    );
    let server = Server::start_in(dir, WEIR, conf);
    let answer = server.get("/page.html");
    assert_eq!(answer.header("Content-Type"), Some("text/html; charset=koi8-r"));
    assert_eq!(answer.bytes, b"a\xc0&#1081;");
    let answer = server.get("/utf/page.html");
    assert_eq!(answer.header("Content-Type"), Some("text/html; charset=utf-8"));
    assert_eq!(answer.header("Content-Length"), Some("5"));
    // Parts of an answer are in its own charset.
    let answer = server.get("/ssi/include.html");
    assert_eq!(answer.body(), "a\u{44e}\u{439}a\u{44e}\u{439}");
}
