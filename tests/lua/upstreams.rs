//! `ngx.upstream`: scripts see the groups of servers, and take servers out of them.

use weir_testkit::Server;

use super::WEIR;

#[test]
fn a_script_sees_the_servers_of_a_group_and_takes_one_out() {
    let server = Server::start(
        WEIR,
        r#"events {}
        http {
            access_log off; default_type text/plain;
            upstream behind {
                server 127.0.0.1:%%PORT1%% weight=2 max_fails=3 fail_timeout=15s;
                server 127.0.0.1:%%PORT2%% down;
                server 127.0.0.1:%%PORT3%% backup;
            }
            server { listen 127.0.0.1:%%PORT1%%; return 200 one; }
            server { listen 127.0.0.1:%%PORT3%%; return 200 three; }
            server {
                listen 127.0.0.1:%%PORT%%;
                location = /servers { content_by_lua_block {
                    local upstream = require "ngx.upstream"
                    ngx.say(table.concat(upstream.get_upstreams(), " "))
                    for _, s in ipairs(upstream.get_servers("behind")) do
                        ngx.say(s.addr == s.name, " ", s.weight, " ", s.max_fails, " ", s.fail_timeout, " ", s.backup, " ", s.down)
                    end
                } }
                location = /peers { content_by_lua_block {
                    local upstream = require "ngx.upstream"
                    for _, all in ipairs { upstream.get_primary_peers("behind"), upstream.get_backup_peers("behind") } do
                        for _, p in ipairs(all) do
                            ngx.say(p.id, " ", p.weight, " ", p.fails, " ", p.max_fails, " ", p.fail_timeout, " ", p.down)
                        end
                    end
                } }
                location = /set { content_by_lua_block {
                    ngx.say(require("ngx.upstream").set_peer_down("behind", false, tonumber(ngx.var.arg_id), ngx.var.arg_down == "1"))
                } }
                location = /none { content_by_lua_block { ngx.say(require("ngx.upstream").get_servers("none")) } }
                location = /pass { proxy_pass http://behind; }
            }
        }"#,
    );
    let body = |path: &str| server.get(path).body();
    assert_eq!(
        body("/servers"),
        "behind\ntrue 2 3 15 nil nil\ntrue 1 1 10 nil true\ntrue 1 1 10 true nil\n"
    );
    assert_eq!(body("/peers"), "0 2 0 3 15 nil\n1 1 0 1 10 true\n0 1 0 1 10 nil\n");
    assert_eq!(body("/none"), "nilupstream not found\n");
    assert_eq!(body("/set?id=7&down=1"), "nilbad peer id\n");
    assert_eq!(body("/pass"), "one");
    assert_eq!(body("/set?id=0&down=1"), "true\n");
    assert_eq!(body("/peers"), "0 2 0 3 15 true\n1 1 0 1 10 true\n0 1 0 1 10 nil\n");
    assert_eq!(body("/pass"), "three");
    assert_eq!(body("/set?id=0&down=0"), "true\n");
    assert_eq!(body("/pass"), "one");
}
