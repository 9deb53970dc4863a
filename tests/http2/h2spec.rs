//! The tests of h2spec, where it is installed: its parts `generic`, `http2` and `hpack`.

use weir_testkit::{Dir, Server, run};

use super::WEIR;

fn start() -> Server {
    let dir = Dir::new();
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    for name in ["self.pem", "self.key"] {
        dir.write(name, std::fs::read(data.join(name)).unwrap());
    }
    dir.write("html/index.html", vec![b'x'; 2000]);
    let conf = "user root; events { }
         http {
             http2 on;
             ssl_certificate self.pem; ssl_certificate_key self.key;
             server { listen 127.0.0.1:%%PORT%%; listen 127.0.0.1:%%PORT1%% ssl; root html; }
         }";
    Server::start_in(dir, WEIR, conf)
}

/// The one sends a frame of 20,000 bytes, whatever was announced; the other a frame of the largest size that was
/// announced, whatever the window is, which is no mistake of the server's if it has not answered before.
const EXCUSED: [&str; 2] = [
    "Sends a large size HEADERS frame that exceeds the SETTINGS_MAX_FRAME_SIZE",
    "Sends a DATA frame with 2^14 octets in length",
];

fn passes(port: u16, with: &[&str]) {
    if std::process::Command::new("h2spec").arg("--version").output().is_err() {
        return eprintln!("skipped: h2spec is not installed");
    }
    let port = port.to_string();
    let args = ["60", "h2spec", "--host", "127.0.0.1", "--port", &port, "--timeout", "10"];
    let output = run("timeout", args.iter().chain(with));
    let said = String::from_utf8_lossy(&output.stdout);
    let mut failed = said.lines().filter(|line| line.contains('×'));
    let excused = |line: &str| EXCUSED.iter().any(|excused| line.contains(excused));
    assert!(said.contains(" passed, ") && failed.all(excused), "{said}");
}

#[test]
fn it_passes_over_tls() {
    passes(start().port_at(1), &["--tls", "--insecure"]);
}

#[test]
fn it_passes_with_prior_knowledge() {
    passes(start().port(), &[]);
}
