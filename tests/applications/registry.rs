//! Docker's registry, which skopeo pushes an image to and pulls it from.

use std::fs;
use std::process::Command;

use weir_testkit::{certified, free_port};

use crate::{WEIR, client, done, noise, program, start, wait_port, went_well};
use weir_testkit::Server;

const CONF: &str = r#"
    user root; worker_processes 2; events { }
    http {
        upstream docker-registry { server 127.0.0.1:REGISTRY; }
        map $upstream_http_docker_distribution_api_version $docker_distribution_api_version {
            '' 'registry/2.0';
        }
        server {
            listen 127.0.0.1:%%PORT%% ssl;
            ssl_certificate chain.pem;
            ssl_certificate_key leaf.key;
            ssl_session_cache shared:SSL:10m;
            client_max_body_size 0;
            chunked_transfer_encoding on;
            location /v2/ {
                if ($http_user_agent ~ "^(docker\/1\.(3|4|5(?!\.[0-9]-dev))|Go ).*$") { return 404; }
                auth_basic "Registry realm";
                auth_basic_user_file %%DIR%%/users;
                add_header 'Docker-Distribution-Api-Version' $docker_distribution_api_version always;
                proxy_pass http://docker-registry;
                proxy_set_header Host $http_host;
                proxy_set_header X-Real-IP $remote_addr;
                proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
                proxy_set_header X-Forwarded-Proto $scheme;
                proxy_read_timeout 900;
            }
        }
    }"#;

#[test]
fn an_image_is_pushed_to_a_registry_and_pulled() {
    let (Some(registry), Some(skopeo)) = (program("docker-registry"), program("skopeo")) else {
        return;
    };
    let dir = certified();
    dir.write("users", "me:{PLAIN}secret\n");
    let (port, path) = (free_port(), dir.path().display().to_string());
    let conf = dir.write(
        "registry.yml",
        format!(
            "version: 0.1\nhttp:\n  addr: 127.0.0.1:{port}\n\
             storage:\n  filesystem:\n    rootdirectory: {path}/registry\n"
        ),
    );
    let mut command = Command::new(registry);
    let _registry = start(command.arg("serve").arg(conf), &dir, "registry.log");
    wait_port(port, &dir, "registry.log");
    let layer = noise(8 << 20);
    dir.write("layer/long", &layer);
    done(
        Command::new("tar")
            .args(["-C", &format!("{path}/layer"), "-cf"])
            .args([&format!("{path}/layer.tar"), "long"]),
    );
    let server = Server::start_in(dir, WEIR, &CONF.replace("REGISTRY", &port.to_string()));

    let image = format!("docker://127.0.0.1:{}/some/image:1", server.port());
    let source = format!("tarball:{path}/layer.tar");
    let insecure = ["--insecure-policy", "copy", "--tmpdir", &path];
    let to = ["--dest-tls-verify=false", "--dest-creds=me:secret", &source, &image];
    client(&skopeo, insecure.iter().chain(&to));
    server.reload();
    let back = format!("dir:{path}/back");
    let from = ["--src-tls-verify=false", "--src-creds=me:secret", &image, &back];
    client(&skopeo, insecure.iter().chain(&from));
    let files = fs::read_dir(format!("{path}/back")).unwrap();
    let longest = files.filter_map(|file| Some(file.ok()?.metadata().ok()?.len())).max();
    assert!(longest.is_some_and(|length| length > 8 << 20), "{longest:?}");
    // skopeo has compared each blob with its digest.
    let names = ["inspect", "--tls-verify=false", "--creds=me:secret", &image];
    assert!(client(&skopeo, names).contains("\"RepoTags\": [\n        \"1\"\n    ]"));
    let stranger = Command::new(&skopeo).args(["inspect", "--tls-verify=false", &image]).output();
    assert!(!stranger.unwrap().status.success());
    went_well(&server);
}
