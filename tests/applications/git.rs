//! git over its smart HTTP: git-http-backend, run by fcgiwrap.

use std::fs;
use std::path::Path;
use std::process::Command;

use weir_testkit::{Dir, until};

use crate::{FASTCGI_PARAMS, done, noise, program, start, weir, went_well};

/// A push asks for a password; a clone does not.
const HTTP: &str = r#"
    map "$uri $arg_service" $realm { default off; "~git-receive-pack" push; }"#;
const SITE: &str = "
    client_max_body_size 0;
    location ~ ^/git(?<repository>/.*)$ {
        auth_basic $realm;
        auth_basic_user_file %%DIR%%/users;
        include fastcgi_params;
        fastcgi_param SCRIPT_FILENAME BACKEND;
        fastcgi_param GIT_PROJECT_ROOT %%DIR%%/repositories;
        fastcgi_param GIT_HTTP_EXPORT_ALL '';
        fastcgi_param PATH_INFO $repository;
        fastcgi_pass unix:%%DIR%%/fcgiwrap.sock;
    }";

/// git, without the settings of the machine.
fn git(home: &Path) -> Command {
    let mut command = Command::new("git");
    command.env("HOME", home).env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_TERMINAL_PROMPT", "0");
    command.envs([("GIT_AUTHOR_NAME", "a"), ("GIT_COMMITTER_NAME", "a")]);
    command.envs([("GIT_AUTHOR_EMAIL", "a@localhost"), ("GIT_COMMITTER_EMAIL", "a@localhost")]);
    command.args(["-C", &home.display().to_string(), "-c", "init.defaultBranch=main"]);
    command
}

#[test]
fn git_pushes_and_clones() {
    let (Some(_), Some(wrap)) = (program("git"), program("fcgiwrap")) else { return };
    let Some(backend) = program("git-http-backend") else { return };
    let dir = Dir::new();
    let home = dir.path().to_owned();
    let bare = home.join("repositories/a.git").display().to_string();
    done(git(&home).args(["init", "-q", "--bare", &bare]));
    dir.write("users", "me:{PLAIN}secret\n");
    dir.write("fastcgi_params", FASTCGI_PARAMS);
    let socket = format!("unix:{}", home.join("fcgiwrap.sock").display());
    // One process: it would leave others behind when it is killed.
    let _cgi = start(Command::new(wrap).args(["-c", "1", "-s", &socket]), &dir, "fcgiwrap.log");
    assert!(until(&home, || home.join("fcgiwrap.sock").exists()), "fcgiwrap does not start");
    let site = SITE.replace("BACKEND", &backend.display().to_string());
    let server = weir(dir, HTTP, &site);
    let address = |user: &str| format!("http://{user}127.0.0.1:{}/git/a.git", server.port());

    done(git(&home).args(["clone", "-q", &address(""), "work"]));
    // Longer than git's http.postBuffer, so that git sends chunks without the body's length.
    let long = noise(6 << 20);
    fs::write(home.join("work/long"), &long).unwrap();
    let commit = |message: &str| {
        done(git(&home.join("work")).args(["add", "."]));
        done(git(&home.join("work")).args(["commit", "-q", "-m", message]));
    };
    commit("first");
    let push = |user: &str| {
        let mut command = git(&home.join("work"));
        command.args(["push", "-q", &address(user), "main"]).output().unwrap()
    };
    assert!(!push("").status.success(), "a push without a password is taken");
    let pushed = push("me:secret@");
    assert!(pushed.status.success(), "{}", String::from_utf8_lossy(&pushed.stderr));
    done(git(&home).args(["clone", "-q", "--depth", "1", &address(""), "copy"]));
    assert!(fs::read(home.join("copy/long")).unwrap() == long, "the clone has another file");

    server.reload();
    fs::write(home.join("work/short"), "short").unwrap();
    commit("second");
    assert!(push("me:secret@").status.success());
    done(git(&home.join("copy")).args(["pull", "-q", "--unshallow"]));
    assert_eq!(fs::read(home.join("copy/short")).unwrap(), b"short");
    let log = done(git(&home.join("copy")).args(["log", "--format=%s"]));
    assert_eq!(log.lines().collect::<Vec<_>>(), ["second", "first"]);
    went_well(&server);
}
