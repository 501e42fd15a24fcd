//! The image of a whole machine: an init system and what sets a machine up at its first boot, as the images of cloud
//! providers have it. For virtual machines; behind other walls nothing would start it.

/// Few: whoever wants more installs it, as on every machine.
pub(crate) const TOOLS: &[&str] = &["bash", "ca-certificates", "curl", "iproute2", "less", "procps", "sudo"];

/// An init system, and what sets a machine up.
pub(crate) const PACKAGES: &[&str] = &["cloud-init", "dbus", "kmod", "systemd", "systemd-sysv", "udev"];

/// What a machine without a network device is set up with: its name, its users, and what the user data says. The folder that
/// it is told this in is filled at its start.
pub(crate) const FILES: &[(&str, &str)] = &[(
    "/etc/cloud/cloud.cfg.d/90_sloplet.cfg",
    "datasource_list: [NoCloud, None]
network: {config: disabled}
disable_root: false
users: []
cloud_init_modules: [seed_random, bootcmd, write-files, set_hostname, update_hostname, users-groups]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts-user, final-message]
",
)];

/// No prompts on a console that nobody sees, nothing that waits for a network, no work on a clock.
pub(crate) const FINISH: &str = "set -e
for unit in console-getty.service getty@tty1.service serial-getty@ttyS0.service systemd-networkd-wait-online.service \
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer \
    systemd-networkd.service systemd-networkd.socket systemd-timesyncd.service systemd-machine-id-commit.service; do
  ln -sf /dev/null \"$1/etc/systemd/system/$unit\"
done
chroot \"$1\" systemctl set-default multi-user.target
: > \"$1/etc/fstab\"
: > \"$1/etc/machine-id\"
rm -rf \"$1\"/var/lib/cloud/* \"$1\"/var/log/journal
";
