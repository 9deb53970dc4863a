//! A page of many small objects in a browser: headless Chromium, where it is installed.

use std::fmt::Write;
use std::path::Path;

use weir_testkit::{Dir, Server, dump_page, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const OBJECTS: usize = 200;
/// Counts the images and says which protocol they came by, when all have come or failed.
const SCRIPT: &str = "
    addEventListener('load', () => {
        const loaded = [...document.images].filter(image => image.naturalWidth === 7).length;
        const resources = performance.getEntriesByType('resource');
        const protocols = new Set(resources.map(resource => resource.nextHopProtocol));
        document.body.innerHTML = `[${loaded} by ${[...protocols].join()}]`;
    });";

/// A page and its objects.
fn page() -> Dir {
    let dir = Dir::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    for name in ["self.pem", "self.key"] {
        dir.write(name, std::fs::read(data.join(name)).unwrap());
    }
    let mut text = format!("<!DOCTYPE html><title>many</title><script>{SCRIPT}</script><body>");
    for n in 0..OBJECTS {
        let _ = write!(text, "<img src=/object/{n}.svg>");
        let image = format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='7' height='7'><!-- {n} --></svg>"
        );
        dir.write(&format!("html/object/{n}.svg"), image);
    }
    dir.write("html/index.html", text);
    dir
}

fn start(inside: &str) -> Server {
    let conf = format!(
        "user root; events {{ }}
         http {{
            types {{ text/html html; image/svg+xml svg; }}
            log_format which '$connection $server_protocol $status $uri';
            access_log which.log which;
            ssl_certificate self.pem; ssl_certificate_key self.key;
            server {{ listen 127.0.0.1:%%PORT%% ssl; root html; {inside} }}
         }}"
    );
    Server::start_in(page(), WEIR, &conf)
}

/// What the browser's page says in the end; none if there is no browser.
fn visit(server: &Server) -> Option<String> {
    let url = format!("https://127.0.0.1:{}/", server.port());
    let page = dump_page(&server.dir().file("profile"), &url)?;
    let said = page.split_once("<body>[").and_then(|(_, rest)| rest.split_once(']'));
    Some(said.unwrap_or_else(|| panic!("no count in {page:?}")).0.to_owned())
}

/// The lines of the objects in the access log: connection, protocol.
fn objects(server: &Server) -> Vec<(String, String)> {
    let read = || -> Vec<(String, String)> {
        let log = server.dir().read("which.log");
        let fields = log.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        fields
            .filter(|f| f.len() == 4 && f[2] == "200" && f[3].starts_with("/object/"))
            .map(|f| (f[0].to_owned(), f[1].to_owned()))
            .collect()
    };
    until(server.dir().path(), || read().len() >= OBJECTS);
    read()
}

#[test]
fn a_page_of_many_objects_comes_over_one_connection_by_http2() {
    let server = start("http2 on;");
    let Some(said) = visit(&server) else { return };
    assert_eq!(said, "200 by h2");
    let objects = objects(&server);
    assert_eq!(objects.len(), OBJECTS);
    let first = &objects[0];
    assert_eq!(first.1, "HTTP/2.0");
    assert!(objects.iter().all(|object| object == first), "{objects:?}");
}

#[test]
fn the_same_page_comes_over_few_connections_by_http1() {
    let server = start("http2 off;");
    let Some(said) = visit(&server) else { return };
    assert_eq!(said, "200 by http/1.1");
    let objects = objects(&server);
    assert_eq!(objects.len(), OBJECTS);
    assert!(objects.iter().all(|(_, protocol)| protocol == "HTTP/1.1"));
    let mut connections: Vec<_> = objects.iter().map(|(connection, _)| connection).collect();
    connections.sort();
    connections.dedup();
    // Browsers open six to a server, and keep them.
    assert!(connections.len() <= 12, "{connections:?}");
}
