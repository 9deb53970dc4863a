use std::path::Path;

use weir_conf::read_text;

use super::*;
use crate::cli;

fn read(text: &str) -> Result<(Config, Vec<Error>), Error> {
    let options = cli::CommandLine { prefix: Some("/p".into()), ..cli::CommandLine::default() };
    let paths = Paths::new(&options, |_| true);
    let tree = read_text(Path::new("/p/conf/nginx.conf"), text.as_bytes());
    assert!(tree.broken.is_none());
    let machine = Machine { cpus: 4, allowed: (0..4).collect() };
    Config::read(&tree.main, &paths, &machine)
}

fn config(text: &str) -> Config {
    read(&format!("{text} events {{}}")).unwrap().0
}

fn refused(text: &str) -> String {
    read(&format!("{text} events {{}}")).unwrap_err().message
}

#[test]
fn defaults_are_nginx_s() {
    let c = config("");
    assert!(c.daemon && c.master);
    assert_eq!((c.processes, c.threads, c.loops()), (1, 1, 1));
    assert_eq!(c.events.connections, 512);
    assert_eq!(c.events.backend, Backend::Epoll);
    assert_eq!(c.events.balance, AcceptPolicy::Fair);
    assert_eq!(c.pid.as_deref(), Some(Path::new("/p/logs/nginx.pid")));
    assert!(c.shutdown_timeout.is_none());
    assert_eq!(c.user.is_some(), rustix::process::geteuid().is_root());
}

#[test]
fn auto_is_the_number_of_processors() {
    let c = config("worker_processes auto; worker_threads auto;");
    assert_eq!((c.processes, c.threads), (4, 4));
    assert_eq!(config("worker_processes 3;").processes, 3);
    for wrong in ["0", "-1", "x", "1x", "99999999999999999999"] {
        let text = refused(&format!("worker_processes {wrong};"));
        assert_eq!(text, "\"worker_processes\" directive invalid value");
    }
}

#[test]
fn there_is_a_limit_to_loops() {
    assert_eq!(config("worker_processes 23; worker_threads 89;").loops(), 2047);
    assert!(refused("worker_processes 32; worker_threads 64;").contains("more than 2047 loops"));
    assert!(refused("worker_processes 9999999999; worker_threads 9999999999;").contains("loops"));
}

#[test]
fn the_pid_file_is_under_the_prefix() {
    assert_eq!(config("pid run/x.pid;").pid.unwrap(), Path::new("/p/run/x.pid"));
    assert_eq!(config("pid /run/x.pid;").pid.unwrap(), Path::new("/run/x.pid"));
    assert_eq!(config("pid \"\";").pid.unwrap(), Path::new("/p/logs/nginx.pid"));
}

#[test]
fn environment_keeps_and_sets() {
    let c = config("env TZ; env A=b=c; env B=;");
    assert_eq!(
        c.environment,
        [("TZ".into(), None), ("A".into(), Some("b=c".into())), ("B".into(), Some("".into()))]
    );
    assert!(config("env =x; env \"\";").environment.is_empty());
}

#[test]
fn priorities_have_signs() {
    assert_eq!(config("worker_priority -5;").priority, -5);
    assert_eq!(config("worker_priority +5;").priority, 5);
    assert_eq!(refused("worker_priority --5;"), "\"worker_priority\" directive invalid number");
}

#[test]
fn thread_pools() {
    assert_eq!(config("thread_pool a threads=2;").files, FileThreads { threads: 32, queue: 65536 });
    let c = config("thread_pool a threads=2; thread_pool default threads=3 max_queue=4;");
    assert_eq!(c.files, FileThreads { threads: 3, queue: 4 });
    assert_eq!(c.pools, [("a".to_owned(), FileThreads { threads: 2, queue: 65536 })]);
    assert_eq!(refused("thread_pool a threads=0;"), "invalid threads value \"threads=0\"");
    assert_eq!(refused("thread_pool a max_queue=1;"), {
        "\"thread_pool\" must have \"threads\" parameter"
    });
    assert_eq!(refused("thread_pool a threads=1; thread_pool a threads=1;"), {
        "duplicate thread pool \"a\""
    });
}

#[test]
fn events_say_how_to_wait_and_spread() {
    let events = |text: &str| read(&format!("events {{ {text} }}")).map(|(c, _)| c.events);
    let e = events("use poll; worker_connections 7; multi_accept on; accept_mutex on;").unwrap();
    assert_eq!((e.backend, e.connections, e.multi_accept), (Backend::Poll, 7, true));
    assert_eq!(e.balance, AcceptPolicy::Mutex);
    let e = events("accept_mutex on; accept_balance rotate=4;").unwrap();
    assert_eq!(e.balance, AcceptPolicy::Rotate(4));
    assert!(e.request_balance);
    assert!(!events("request_balance off;").unwrap().request_balance);
    let text = |text: &str| events(text).unwrap_err().message;
    assert_eq!(text("use kqueue;"), "invalid event type \"kqueue\"");
    assert_eq!(text("worker_connections x;"), "invalid number \"x\"");
    assert_eq!(text("accept_balance luck;"), "unknown accept policy \"luck\"");
    let e = events("accept_balance reuseport_load;").unwrap();
    assert_eq!(e.balance, AcceptPolicy::ReuseportLoad);
}

#[test]
fn warnings_come_with_the_result() {
    let (_, warnings) = read("events { debug_connection 127.0.0.1; }").unwrap();
    assert_eq!(warnings.len(), 1);
    let (_, warnings) = read("worker_cpu_affinity 100000; events {}").unwrap();
    assert!(warnings[0].message.contains("names CPU 5"));
}

#[test]
fn an_unknown_user_is_refused_when_it_matters() {
    if rustix::process::geteuid().is_root() {
        assert_eq!(refused("user no-such-user;"), "getpwnam(\"no-such-user\") failed");
        assert_eq!(refused("user root no-such-group;"), "getgrnam(\"no-such-group\") failed");
        assert_eq!(config("user root;").user.unwrap().uid, 0);
    }
}
