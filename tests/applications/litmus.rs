//! litmus, which asks a server of WebDAV for all that RFC 4918 says.

use std::process::Command;

use weir_testkit::Dir;

use crate::{program, weir};

/// PROPPATCH needs them.
fn keeps_attributes(dir: &Dir) -> bool {
    let none = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(dir.path(), "user.weir.test", b"1", none).is_ok()
}

#[test]
fn litmus_passes() {
    let Some(litmus) = program("litmus") else { return };
    let dir = Dir::new();
    std::fs::create_dir(dir.file("files")).unwrap();
    if !keeps_attributes(&dir) {
        return eprintln!("skipped: the file system has no extended attributes");
    }
    let server = weir(
        dir,
        "dav_ext_lock_zone zone=locks:1m;",
        "location / {
             root %%DIR%%/files;
             client_max_body_size 0;
             client_body_temp_path %%DIR%%/bodies;
             create_full_put_path off;
             dav_methods PUT DELETE MKCOL COPY MOVE;
             dav_ext_methods PROPFIND PROPPATCH OPTIONS LOCK UNLOCK;
             dav_ext_lock zone=locks;
         }",
    );
    let mut command = Command::new(litmus);
    command.current_dir(server.dir().path()).env("LC_ALL", "C");
    let said = command.args(["-k", &format!("http://127.0.0.1:{}/", server.port())]).output();
    let said = String::from_utf8_lossy(&said.unwrap().stdout).into_owned();
    let summary = |suite: &str| {
        let summary = said.lines().find(|line| line.contains(&format!("summary for `{suite}'")));
        summary.unwrap_or_else(|| panic!("{said}"))
    };
    for suite in ["basic", "props", "locks", "http"] {
        assert!(summary(suite).contains(" 0 failed"), "{suite}: {said}");
    }
    // As in nginx, a collection is a destination only with a slash at its end: 409.
    assert!(summary("copymove").contains(": 10 passed, 3 failed"), "{said}");
    assert!(!server.log().contains("panicked"), "{}", server.log());
}
