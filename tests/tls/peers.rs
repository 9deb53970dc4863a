//! Sessions with servers behind: each server resumes its own, whichever is asked in between.

use weir_testkit::Client;

use super::{NAME, WEIR, dir, start};

#[test]
fn servers_of_a_group_resume_their_own_sessions() {
    let servers = [0, 1].map(|_| start("", "return 200 $ssl_session_reused;"));
    let list = servers.each_ref().map(|server| format!("server 127.0.0.1:{};", server.port()));
    let list = list.concat();
    for versions in ["TLSv1.2", "TLSv1.3"] {
        let secured = format!("proxy_ssl_name {NAME}; proxy_ssl_protocols {versions};");
        let conf = format!(
            "worker_processes 1; events {{ }}
             http {{
                 upstream own {{ {list} keepalive 0; }}
                 upstream shared {{ zone shared 64k; {list} keepalive 0; }}
                 server {{
                     listen 127.0.0.1:%%PORT%%;
                     {secured}
                     location /own {{ proxy_pass https://own; }}
                     location /shared {{ proxy_pass https://shared; }}
                 }}
             }}
             stream {{
                 upstream own {{ {list} }}
                 server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass own; proxy_ssl on; {secured} }}
             }}"
        );
        let proxy = weir_testkit::Server::start_in(dir(), WEIR, &conf);
        let ask = |path: &str| match path {
            "stream" => Client::connect(proxy.port_at(1)).get("/").body(),
            path => proxy.get(path).body(),
        };
        for path in ["/own", "/shared", "stream"] {
            let reused: Vec<_> = (0..6).map(|_| ask(path)).collect();
            assert_eq!(reused[2..], ["r"; 4], "{versions} {path}: {reused:?}");
            // No server has taken a session of the other one.
            assert!(path != "/own" || reused[..2] == [".", "."], "{versions}: {reused:?}");
        }
    }
}
