//! sftp, scp and rsync.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};

use crate::client::{Background, Served, complained, fed, noise, said, until};
use crate::common::Host;

#[test]
fn files_come_and_go_whole_by_every_client() {
    let host = Host::shared();
    let served = Served::start(&host.root(), &[]);
    served.sandbox("my");
    let path = |name: &str| served.path(name).to_str().unwrap().to_owned();
    let bytes = noise(&served.path("up"), 3_000_000);
    let sftp = |script: &str| {
        let mut command = served.program("sftp", "id");
        command.args(["-b", "-", "my@sandbox"]);
        fed(command, script.as_bytes(), 0)
    };
    let (up, down) = (path("up"), path("down"));
    let told = sftp(&format!(
        "pwd\nput {up} a\nmkdir d\nrename a d/b\nln -s d/b l\nln d/b h\nchmod 640 d/b\nls -l d\ndf\nget l {down}\n\
         rm h\ncd d\npwd\nls -la\n"
    ));
    assert_eq!(fs::read(&down).unwrap(), bytes);
    assert!(told.contains("Remote working directory: /home/user/d") && told.contains("-rw-r-----"), "{told}");
    assert_eq!(
        served.say("my", "stat -c '%a %s %U' d/b; readlink l; ls h 2>&1 || true"),
        "640 3000000 user\nd/b\nls: cannot access 'h': No such file or directory\n"
    );
    // What the user may not do is refused, with the reason.
    let mut command = served.program("sftp", "id");
    command.args(["-b", "/dev/stdin", "my@sandbox"]);
    fed(command, b"put /etc/hostname /etc/sloplet-test\n", 1);
    assert_eq!(sftp("-rm nothing\n-rmdir d\n-rename l d/b\n-get nothing\npwd\n").matches("sftp>").count(), 5);

    // scp, with times and folders; and the old one, which needs a program inside.
    let mut command = served.program("scp", "id");
    fs::set_permissions(&up, fs::Permissions::from_mode(0o751)).unwrap();
    command.args(["-p", &up, "my@sandbox:copy"]);
    said(command, 0);
    let before = fs::metadata(&up).unwrap();
    assert_eq!(served.say("my", "stat -c '%a %Y' copy"), format!("751 {}\n", before.mtime()));
    fs::create_dir_all(served.path("tree/below")).unwrap();
    fs::write(served.path("tree/below/file"), "text").unwrap();
    for old in [&[][..], &["-O"]] {
        let mut command = served.program("scp", "id");
        command.args(old).args(["-r", &path("tree"), "my@sandbox:"]);
        said(command, 0);
        assert_eq!(served.say("my", "cat tree/below/file; rm -r tree"), "text");
    }
    let mut command = served.program("scp", "id");
    command.args(["my@sandbox:~/copy", &path("again")]);
    said(command, 0);
    assert_eq!(fs::read(path("again")).unwrap(), bytes);

    let rsync = |from: &str, to: &str| {
        let mut command = Command::new("timeout");
        command.args(["60", "rsync", "-a", "--stats", "-e", &served.shell(), from, to]);
        said(command, 0)
    };
    let tree = format!("{}/", path("tree"));
    rsync(&tree, "my@sandbox:mirror/");
    assert!(rsync(&tree, "my@sandbox:mirror/").contains("Number of regular files transferred: 0"));
    rsync("my@sandbox:mirror/", &format!("{}/", path("mirrored")));
    assert_eq!(fs::read(path("mirrored/below/file")).unwrap(), b"text");

    // What was done is written down: what was written with its digest, moved, removed.
    let audit = served.server.command(&["audit", "my"]).expect_code(0).out();
    let digest = said(
        {
            let mut sum = Command::new("sha256sum");
            sum.arg(&up);
            sum
        },
        0,
    );
    assert!(audit.contains(digest.split(' ').next().unwrap()), "{audit}");
    assert!(audit.contains("d/b") && audit.contains("removed"), "{audit}");
    served.server.end();
}

#[test]
fn what_serves_files_inside_shows_nothing_of_the_agent() {
    let host = Host::shared();
    let served = Served::start(&host.root(), &[]);
    served.sandbox("my");
    let mut command = served.ssh("my", &["-s", "sftp"]);
    command.stdin(Stdio::piped());
    let session = Background::start(command);
    // It is a copy of the first process that became the user: neither may be looked into, by root inside either.
    let look = "for p in /proc/[0-9]*; do cat $p/maps >/dev/null 2>&1 || echo closed; done; ls -l /proc/[0-9]*/exe 2>/dev/null | grep -c sloplet; true";
    let closed = "closed\nclosed\n0\n";
    until("a session", || (served.say("my", look) == closed).then_some(()));
    let by_root = served.server.command(&["exec", "-u", "root", "my", "--", "sh", "-c", look]).expect_code(0);
    assert_eq!(by_root.out(), closed);
    session.kill();
    until("its end", || (served.say("my", look) == "closed\n0\n").then_some(()));
    served.server.end();
}

#[test]
fn an_upload_that_is_cut_leaves_no_half_file() {
    let host = Host::shared();
    let served = Served::start(&host.root(), &[]);
    served.sandbox("my");
    noise(&served.path("large"), 20_000_000);
    let mut command = served.program("scp", "id");
    // Slowly, so that there is something to cut.
    command.args(["-l", "20000"]).arg(served.path("large")).arg("my@sandbox:large");
    let upload = Background::start(command);
    until("a beginning", || served.ssh("my", &["test -s large"]).status().unwrap().success().then_some(()));
    upload.kill();
    until("its removal", || (!served.ssh("my", &["test -e large"]).status().unwrap().success()).then_some(()));
    // Nonsense ends the session, and nothing else.
    let garbage = served.ssh("my", &["-s", "sftp"]);
    fed(garbage, &[0xff; 4096], 1);
    let short = served.ssh("my", &["-s", "sftp"]);
    fed(short, &[0, 0, 0, 5, 1, 0, 0, 0, 3, 0, 0, 0, 1, 3], 1);
    assert!(complained(served.ssh("my", &["-s", "nonsense"]), 255).contains("subsystem request failed"));
    assert_eq!(served.say("my", "echo well"), "well\n");
    served.server.end();
}
