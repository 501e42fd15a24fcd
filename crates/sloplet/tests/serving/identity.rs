//! Whose server it is: one data folder has one, and nobody else's is talked to.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use sloplet_sys::private;

use crate::common::{Host, Server, Sloplet};

/// The same user with another data folder; the run folder is shared, as it is if nobody says otherwise.
fn with_other_data(sloplet: &Sloplet) -> Sloplet {
    at(sloplet, &sloplet.folder("other-data"), &sloplet.run_dir)
}

/// The same user with other folders.
fn at(sloplet: &Sloplet, data: &Path, run_dir: &Path) -> Sloplet {
    let mut other = sloplet.clone();
    (other.data, other.run_dir) = (data.to_owned(), run_dir.to_owned());
    other
}

fn make(served: &Server) -> String {
    served.command(&["create", "--memory", "64MiB", "--timeout", "never"]).expect_code(0).word()
}

#[track_caller]
fn assert_alone(served: &Server, id: &str) {
    let list = served.json(&["ls"]);
    let found: Vec<_> = list.as_array().unwrap().iter().map(|one| (&one["id"], &one["state"])).collect();
    assert!(matches!(&found[..], [(its, state)] if *its == id && *state == "running"), "{found:?}, not {id}");
    served.command(&["exec", id, "--", "true"]).expect_code(0);
    let info = served.json(&["info"]);
    assert_eq!(info["data"].as_str().unwrap(), served.sloplet.data.to_str().unwrap());
}

#[test]
fn servers_of_two_data_folders_leave_each_others_sandboxes_alone() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let leaks = host.leaks();
        let other = with_other_data(&sloplet);
        let (one, two) = (Server::start_with(&sloplet, &[]), Server::start_with(&other, &[]));
        let (first, second) = (make(&one), make(&two));
        assert_alone(&one, &first);
        assert_alone(&two, &second);
        // A restart while the other lives.
        two.end();
        let two = Server::start_with(&other, &[]);
        assert_alone(&one, &first);
        assert_alone(&two, &second);
        // Both are killed, and one is back before the other.
        one.kill();
        two.kill();
        let two = Server::start_with(&other, &[]);
        assert_alone(&two, &second);
        sloplet.invoke(&["gc"]).finish().expect_code(0);
        other.invoke(&["gc"]).finish().expect_code(0);
        let one = Server::start_with(&sloplet, &[]);
        assert_alone(&one, &first);
        assert_alone(&two, &second);
        // One is away for a while, and commands for its data folder find nobody rather than the other.
        one.end();
        let lost = sloplet.invoke(&["--no-autostart", "ls"]).finish().expect_code(125);
        assert!(lost.stderr.contains(sloplet.data.to_str().unwrap()), "{lost}");
        let one = Server::start_with(&sloplet, &[]);
        assert_alone(&one, &first);
        one.end_with_its_sandboxes();
        assert_alone(&two, &second);
        two.end_with_its_sandboxes();
        leaks.assert_none_new_after_a_server();
    }
}

#[test]
fn a_second_server_of_a_data_folder_names_the_first_and_ends() {
    let host = Host::shared();
    let sloplet = host.root();
    let served = Server::start(&sloplet);
    let id = make(&served);
    // By another name, and with another run folder, too.
    let link = host.dir().join("link");
    symlink(&sloplet.data, &link).unwrap();
    for other in [sloplet.clone(), at(&sloplet, &link, &sloplet.folder("other-run"))] {
        fs::set_permissions(sloplet.folder("other-run"), PermissionsExt::from_mode(0o700)).unwrap();
        let ended = other.invoke(&["serve", "--listen", "127.0.0.1:0"]).finish().expect_code(125);
        let pid = served.pid().as_raw_nonzero().to_string();
        let said = ended.stderr.lines().last().unwrap_or_default();
        assert!(said.contains("in use") && said.contains(&format!("process {pid}")), "{ended}");
        assert_alone(&served, &id);
    }
    served.end();
}

/// Somebody who waits where the server's socket would be.
struct Squatter(UnixListener);

impl Squatter {
    fn wait_in(folder: &Path) -> Self {
        fs::create_dir_all(folder).unwrap();
        let listener = UnixListener::bind(folder.join("api.sock")).unwrap();
        fs::set_permissions(folder.join("api.sock"), PermissionsExt::from_mode(0o777)).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    /// What somebody has sent to it.
    fn caught(&self) -> Vec<u8> {
        let mut caught = Vec::new();
        while let Ok((mut client, _)) = self.0.accept() {
            client.set_nonblocking(true).unwrap();
            let _ = client.read_to_end(&mut caught);
        }
        caught
    }
}

#[test]
fn a_run_folder_squatted_by_another_user_gets_no_key_and_no_secret() {
    const OTHER: u32 = 4321;
    let host = Host::shared();
    let sloplet = host.user().with("SLOPLET_API_KEY", "sk-very-secret");
    let account = sloplet.account.clone().unwrap();
    let data = sloplet.folder("data");
    // Made by another user, open to all.
    let run = host.dir().join("squatted");
    let inside = private::run_folder(&run, &data).unwrap();
    let squatter = Squatter::wait_in(&inside);
    for folder in [&run, &inside] {
        chown(folder, Some(OTHER), Some(OTHER)).unwrap();
        fs::set_permissions(folder, PermissionsExt::from_mode(0o777)).unwrap();
    }
    let there = at(&sloplet, &data, &run);
    for words in [
        &["create", "--env", "PASSWORD=the-secret"][..],
        &["ls"],
        &["run", "--env", "PASSWORD=the-secret", "--", "true"],
        &["serve", "--listen", "127.0.0.1:0"],
    ] {
        let ended = there.invoke(words).input("").finish();
        assert!(ended.code != 0 && ended.stderr.contains(&format!("belongs to user {OTHER}")), "{words:?}: {ended}");
        assert!(ended.stderr.contains(run.to_str().unwrap()) && ended.stderr.contains("SLOPLET_RUN"), "{ended}");
    }
    assert_eq!(String::from_utf8_lossy(&squatter.caught()), "");
    // A link to a folder of one's own.
    let link = host.dir().join("squatted-link");
    symlink(sloplet.folder("mine"), &link).unwrap();
    let ended = at(&sloplet, &data, &link).invoke(&["ls"]).finish().expect_code(125);
    assert!(ended.stderr.contains("is not a folder"), "{ended}");
    // The right folder, but somebody else listens.
    let run = sloplet.folder("right");
    let inside = private::run_folder(&run, &data).unwrap();
    let squatter = Squatter::wait_in(&inside);
    for folder in [&run, &inside] {
        chown(folder, Some(account.uid), Some(account.gid)).unwrap();
        fs::set_permissions(folder, PermissionsExt::from_mode(0o700)).unwrap();
    }
    let ended = at(&sloplet, &data, &run).invoke(&["ls"]).finish().expect_code(125);
    assert!(ended.stderr.contains("user 0 listens on"), "{ended}");
    assert_eq!(String::from_utf8_lossy(&squatter.caught()), "");
}
