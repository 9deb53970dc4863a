//! OpenSSL's client, and certificate files.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::Dir;

/// A directory with certificates: `chain.pem` and `leaf.key` for `www.example.org`, `self.pem` for
/// any name, `client.pem`. `root.pem` is the root of the first and the last.
pub fn certified() -> Dir {
    let dir = Dir::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    for entry in std::fs::read_dir(&data).expect("files of certificates") {
        let path = entry.expect("a file of certificates").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("its name");
        dir.write(name, std::fs::read(&path).expect("its contents"));
    }
    dir.write("chain.pem", dir.read("leaf.pem") + &dir.read("inter.pem"));
    dir
}

/// The output of `openssl s_client` that connects to a port of 127.0.0.1 and sends `text`. It runs
/// in `dir`. `None` if OpenSSL is not installed.
pub fn s_client(dir: &Path, port: u16, args: &[&str], text: &str) -> Option<String> {
    let at = format!("127.0.0.1:{port}");
    let mut command = Command::new("timeout");
    command.args(["20", "openssl", "s_client", "-connect", &at]).args(args).current_dir(dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    // The client may have exited already.
    let _ = child.stdin.take()?.write_all(text.as_bytes());
    let said = child.wait_with_output().ok()?;
    let all = [said.stdout, said.stderr].concat();
    Some(String::from_utf8_lossy(&all).into_owned())
}
