//! What a sandbox, a limit or the kernel refuses.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use weir_testkit::{Dir, Server, run, until};

use super::WEIR;

/// A weir whose calls of this name fail with this error; none where strace is missing.
fn refused(dir: &Dir, call: &str, error: &str) -> Option<String> {
    let start = format!(
        "#!/bin/sh\nexec strace -D -f -q -o /dev/null -e trace={call} -e inject={call}:error={error} {WEIR} \"$@\"\n"
    );
    let script = dir.write("weir", start);
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let path = script.to_str().unwrap().to_owned();
    if run(&path, ["-v"]).status.success() {
        return Some(path);
    }
    println!("not run: strace is missing, or may not trace");
    None
}

/// Old container runtimes answer so to each call that they do not know.
#[test]
fn a_sandbox_that_forbids_new_calls_is_served_in() {
    for call in ["openat2", "memfd_create"] {
        let dir = Dir::new();
        let Some(weir) = refused(&dir, call, "EPERM") else { return };
        dir.write("page", "text");
        let conf = "events { } http { access_log %%DIR%%/access.log;
            server { listen 127.0.0.1:%%PORT%%; root %%DIR%%; } }";
        let server = Server::start_in(dir, &weir, conf);
        assert_eq!(server.get("/page").body(), "text", "{call}: {}", server.log());
        assert!(until(server.dir().path(), || server.dir().read("access.log").contains(" 200 4 ")));
    }
}

#[test]
fn root_that_stays_root_needs_no_right_to_change_groups() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = Dir::new();
    let Some(weir) = refused(&dir, "setgroups", "EPERM") else { return };
    let conf =
        "user root; events { } http { server { listen 127.0.0.1:%%PORT%%; return 200 ok; } }";
    let server = Server::start_in(dir, &weir, conf);
    assert_eq!(server.get("/").body(), "ok");
    assert_eq!(server.logged("[warn] "), 1, "{}", server.log());
    assert_eq!(server.logged("initgroups(root, 0) failed, ignored (1: "), 1, "{}", server.log());
}
