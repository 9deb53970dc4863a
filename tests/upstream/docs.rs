//! The examples of docs/upstream.md are configurations.

use std::path::Path;

use weir_testkit::{Dir, examples, run};

use super::WEIR;

#[test]
fn examples_are_accepted_without_a_warning() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/upstream.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut all = examples(&page);
    let count = page.matches("```nginx").count();
    for i in 0..count {
        let example = all.next().unwrap();
        let dir = Dir::new();
        // Nothing is opened by a test of the configuration but its sockets: these ports may be in use.
        let example = example.replace("listen 127.0.0.1:8080", "listen unix:%%/socket");
        let example = example.replace("%%", &dir.path().display().to_string());
        let conf = dir.write("conf", format!("events {{ }} http {{ {example} }}"));
        let prefix = dir.path().to_str().unwrap().to_owned();
        let args = ["-t", "-e", "stderr", "-p", &prefix, "-c", conf.to_str().unwrap()];
        let out = run(WEIR, args);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && !said.contains("[warn]"), "example {i}: {said}");
    }
    assert!(count >= 4);
}
