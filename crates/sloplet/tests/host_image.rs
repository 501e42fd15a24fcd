//! The image `host` shows the host's programs and nothing else of the host: secrets that are planted wherever a host keeps
//! some are looked for from inside.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;
mod probes;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use common::{Host, Sloplet};
use probes::{Probes, problems};

/// A secret in many places of the host. Dropping it removes them.
struct Secrets {
    files: Vec<PathBuf>,
}

impl Secrets {
    fn plant(secret: &str, owner: &Sloplet) -> Self {
        let mut places =
            vec!["/root", "/etc", "/var", "/var/lib", "/var/log", "/var/tmp", "/run", "/tmp", "/opt", "/mnt"];
        places.extend([
            "/srv",
            "/media",
            "/home",
            "/",
            "/boot",
            "/var/cache",
            "/var/spool",
            "/etc/ssl/private",
            "/dev/shm",
        ]);
        places.extend(["/etc/profile.d", "/etc/ssh", "/etc/cron.d", "/etc/sudoers.d", "/etc/apt", "/etc/systemd"]);
        let home = owner.account.as_ref().map(|account| account.home.display().to_string());
        places.extend(home.as_deref());
        let mut secrets = Self { files: Vec::new() };
        for place in places.into_iter().filter(|place| Path::new(place).is_dir()) {
            // One for its owner alone, one that everybody may read.
            for mode in [0o600, 0o644] {
                let path = Path::new(place).join(format!("sloplet-{secret}-{mode:o}"));
                fs::write(&path, secret).unwrap();
                secrets.files.push(path.clone());
                fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
                if let Some(account) = &owner.account {
                    chown(&path, Some(account.uid), Some(account.gid)).unwrap();
                }
            }
        }
        secrets
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        for path in &self.files {
            let _ = fs::remove_file(path);
        }
    }
}

/// Who can be what inside, with this image: an ordinary user has no other users to offer.
fn users(sloplet: &Sloplet) -> &'static [&'static str] {
    if sloplet.account.is_none() { &["user", "root"] } else { &["user"] }
}

#[test]
fn secrets_of_the_host_are_not_in_it() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let mut probes = Probes::plant(&host, &sloplet);
        let secrets = Secrets::plant(&probes.secret, &sloplet);
        assert!(secrets.files.len() > 20, "{:?}", secrets.files);
        probes.set(serde_json::json!({"canaries": secrets.files, "sweep": ["/root", "/opt"]}));
        let names = ["canaries", "environment", "host_processes", "sweep"];
        let unconfined = probes.on_host(&host.root(), &names);
        for user in users(&sloplet) {
            let inside = probes.inside(&sloplet, &host, &["--user", user], &names);
            let problems = problems(&unconfined, &inside);
            assert!(problems.is_empty(), "as {user} inside, sandbox of {}:\n{}", sloplet.name, problems.join("\n"));
        }
    }
}

/// The copy of /etc is kept between runs: a secret must not get into it when it is made, nor afterwards.
#[test]
fn nor_are_they_when_the_image_is_made_anew() {
    let host = Host::shared();
    let sloplet = host.root();
    let probes = Probes::plant(&host, &sloplet);
    sloplet.run(&[], &["true"]).expect_code(0);
    let _secrets = Secrets::plant(&probes.secret, &sloplet);
    let find = format!("find / -xdev -name '*{}*' 2>/dev/null; ls -a / /etc", probes.secret);
    let before = sloplet.sh(&["--user", "root"], &find).expect_code(0);
    assert!(!before.out().contains(&probes.secret), "{before}");
    // Another store: made with the secrets there.
    let other = sloplet.folder("other").display().to_string();
    let after = sloplet.invoke_run(&["--user", "root", "--data", &other], &["sh", "-c", &find]).finish().expect_code(0);
    assert!(!after.out().contains(&probes.secret), "{after}");
    // Nor is anything kept in the stores themselves, but for the record of the commands above, which name what they look for.
    for folder in [&sloplet.data, Path::new(&other)] {
        let grep = std::process::Command::new("grep")
            .args(["-rl", "--exclude-dir=ledger", &probes.secret])
            .arg(folder)
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&grep.stdout), "");
    }
}

#[test]
fn what_is_known_to_be_secret_is_absent() {
    let host = Host::shared();
    assert!(Path::new("/etc/shadow").exists() && Path::new("/sys").exists(), "inconclusive");
    for sloplet in [host.root(), host.user()] {
        for user in users(&sloplet) {
            let script = "for path in /etc/shadow /etc/gshadow /etc/sudoers /etc/ssh /etc/ssl/private /etc/machine-id \
                          /etc/resolv.conf /etc/environment /etc/ld.so.preload /root/.ssh /root/.bash_history /root/.bashrc \
                          /var/lib/dpkg /var/log/dpkg.log /run/systemd /run/dbus /run/user /run/docker.sock \
                          /var/run/docker.sock /run/containerd /sys/kernel /boot/grub /lost+found; do \
                          [ -s $path ] && [ -r $path ] && { [ -f $path ] || [ -n \"$(ls -A $path)\" ]; } && echo $path; \
                          done; exit 0";
            let ended = sloplet.sh(&["--user", user], script).expect_code(0);
            assert_eq!(ended.out(), "", "as {user} inside, sandbox of {}", sloplet.name);
        }
    }
}

/// Users, home folders, name: the sandbox's own.
#[test]
fn it_has_users_and_a_name_of_its_own() {
    let host = Host::shared();
    let own_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for sloplet in [host.root(), host.user()] {
        let ended = sloplet
            .sh(&[], "hostname; cat /proc/sys/kernel/hostname; ls /home; cut -d: -f1 /etc/passwd")
            .expect_code(0);
        let lines: Vec<String> = ended.out().lines().map(str::to_owned).collect();
        assert_eq!(lines[..3], ["sloplet", "sloplet", "user"], "{ended}");
        assert!(!lines.contains(&common::USER.to_owned()), "users of the host: {ended}");
        let ended = sloplet.sh(&["--hostname", "another"], "hostname; cat /etc/hosts /etc/hostname").expect_code(0);
        assert!(ended.out().starts_with("another\n"), "{ended}");
        assert!(own_name == "sloplet" || own_name == "localhost" || !ended.out().contains(&own_name), "{ended}");
    }
}

#[test]
fn the_environment_is_the_sandboxes_own() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let run = |options: &[&str]| {
            let invocation =
                sloplet.invoke_run(options, &["env"]).env("SECRET_TOKEN", "of the host").env("LD_DEBUG", "");
            let ended = invocation.env("PYTHONPATH", "/nowhere").env("BASH_ENV", "/nowhere").finish().expect_code(0);
            let mut lines: Vec<String> = ended.out().lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let names: Vec<String> = run(&[]).iter().map(|line| line.split('=').next().unwrap().to_owned()).collect();
        for name in &names {
            assert!(["PATH", "LANG", "HOME", "USER", "LOGNAME", "SHELL", "TERM"].contains(&name.as_str()), "{names:?}");
        }
        // By name only what is asked for.
        let passed = run(&["--env", "SECRET_TOKEN", "--env", "OWN=value"]);
        assert!(passed.contains(&"SECRET_TOKEN=of the host".to_owned()), "{passed:?}");
        assert!(passed.contains(&"OWN=value".to_owned()), "{passed:?}");
        assert_eq!(passed.len(), names.len() + 2, "{passed:?}");
    }
}

#[test]
fn what_is_written_stays_inside_and_is_gone_afterwards() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        for user in users(&sloplet) {
            let name = format!("written-{}-{}-{user}", std::process::id(), sloplet.name);
            let places: &[&str] = if *user == "root" {
                &["/etc", "/home/user", "/tmp", "/var", "/opt", "/root", "/", "/run"]
            } else {
                &["/home/user", "/tmp"]
            };
            let write = format!(
                "for place in {}; do echo x > $place/{name} || exit 1; cat $place/{name}; done",
                places.join(" ")
            );
            let ended = sloplet.sh(&["--user", user], &write).expect_code(0);
            assert_eq!(ended.out(), "x\n".repeat(places.len()), "{ended}");
            let look = format!(
                "ls -d {}; exit 0",
                places.iter().map(|place| format!("{place}/{name}")).collect::<Vec<_>>().join(" ")
            );
            let ended = sloplet.sh(&["--user", user], &look);
            assert_eq!(ended.out(), "", "it is there in the next run");
            for place in places {
                assert!(!Path::new(place).join(&name).exists(), "{place}/{name} is on the host");
            }
        }
    }
}

#[test]
fn programs_of_the_host_are_there_and_cannot_be_changed() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        for user in users(&sloplet) {
            let attempts = "touch /usr/x; touch /usr/bin/x; touch /usr/local/x; rm -f /usr/bin/id; mv /usr/bin/id /usr/bin/id2; \
                            chmod 0777 /usr/bin/id; echo x > /usr/bin/id; echo x > /bin/id; ln /usr/bin/id /usr/bin/id3; \
                            python3 -c 'print(6 * 7)'";
            let ended = sloplet.sh(&["--user", user], attempts).expect_code(0);
            assert_eq!(ended.out(), "42\n", "{ended}");
            let refusals = ended.stderr.lines().filter(|line| line.contains("Read-only file system")).count();
            assert_eq!(refusals, 9, "{ended}");
        }
    }
}

/// Below /usr there may be mounts of the host: what they show is not part of the image.
#[test]
fn mounts_below_system_folders_stay_out() {
    let host = Host::shared();
    let sloplet = host.root();
    let place = PathBuf::from("/usr/local").join(format!("sloplet-mount-{}", std::process::id()));
    fs::create_dir(&place).unwrap();
    let script = "mount -t tmpfs none \"$0\" && echo of the host > \"$0/file\" && cat \"$0/file\"; exec \"$@\"";
    let shown = format!("ls -A {}", place.display());
    let words =
        ["sh", "-c", script, place.to_str().unwrap(), host.binary().to_str().unwrap(), "run", "--", "sh", "-c", &shown];
    // In a mount namespace of the test's own, so that the host never sees it.
    let ended = sloplet.other_program(&[&["unshare", "--mount"], words.as_slice()].concat()).finish();
    fs::remove_dir(&place).unwrap();
    assert_eq!(ended.out(), "of the host\n", "{ended}");
    assert_eq!(ended.code, 0, "{ended}");
}
