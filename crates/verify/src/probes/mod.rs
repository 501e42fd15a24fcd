//! The probes. A new one is a file here and a line below.

macro_rules! probes {
    ($($module:ident :: $name:ident),* $(,)?) => {
        /// All probes, in the order of the list of containment probes.
        pub const ALL: &[Probe] = &[$($module::$name),*];
    };
}

mod agent_binary;
mod agent_script;
mod archives;
mod blast_radius;
mod cgroups;
mod climb_out;
mod clocks;
mod config_trust;
mod copy_out;
mod deadline;
mod descriptor_workdir;
mod descriptors;
mod devices;
mod disk;
mod enter_namespaces;
mod exhaustion;
mod file_api;
mod file_handles;
mod file_race;
mod forks;
mod host_processes;
mod host_sockets;
mod images;
mod kernel_interfaces;
mod kernel_power;
mod kernel_settings;
mod keyrings;
mod kill_all;
mod masked_files;
mod memory;
mod mount_race;
mod mounts;
mod namespaces;
mod neighbours;
mod network;
mod other_doors;
mod other_processes;
mod outer_walls;
mod output;
mod personalities;
mod privileges;
mod processor;
mod propagation;
mod protected_mounts;
mod read_only;
mod recreate;
mod release_agent;
mod run_folder;
mod secrets;
mod server_limits;
mod set_id_files;
mod shared_memory;
mod sockets;
mod special_files;
mod terminals;
mod twins;
mod way_out;
mod zombies;

use crate::probe::Probe;

pub(crate) use network::spelled;
pub(crate) use secrets::search;

probes![
    agent_binary::PROBE,
    agent_script::PROBE,
    descriptors::PROBE,
    descriptor_workdir::PROBE,
    release_agent::PROBE,
    kernel_settings::PROBE,
    masked_files::PROBE,
    images::PROBE,
    namespaces::PROBE,
    mounts::PROBE,
    enter_namespaces::PROBE,
    climb_out::PROBE,
    file_handles::PROBE,
    other_processes::PROBE,
    host_processes::PROBE,
    kill_all::PROBE,
    keyrings::PROBE,
    kernel_interfaces::PROBE,
    kernel_power::PROBE,
    clocks::PROBE,
    sockets::PROBE,
    other_doors::PROBE,
    personalities::PROBE,
    terminals::PROBE,
    set_id_files::PROBE,
    privileges::PROBE,
    outer_walls::PROBE,
    devices::PROBE,
    host_sockets::PROBE,
    shared_memory::PROBE,
    cgroups::PROBE,
    propagation::PROBE,
    read_only::PROBE,
    file_api::PROBE,
    file_race::PROBE,
    archives::PROBE,
    special_files::PROBE,
    forks::PROBE,
    memory::PROBE,
    disk::PROBE,
    exhaustion::PROBE,
    zombies::PROBE,
    output::PROBE,
    deadline::PROBE,
    processor::PROBE,
    network::DIRECT,
    network::METADATA,
    way_out::ADDRESSES,
    way_out::REDIRECT,
    way_out::REBINDING,
    way_out::PROXY,
    way_out::NAMES,
    way_out::REQUESTS,
    network::NAMES,
    way_out::QUESTIONS,
    network::NEIGHBOURS,
    way_out::PORTS,
    way_out::FLOODS,
    secrets::PROBE,
    way_out::TOKENS,
    way_out::TRACES,
    neighbours::PROBE,
    twins::PROBE,
    recreate::PROBE,
    blast_radius::PROBE,
    protected_mounts::PROBE,
    mount_race::PROBE,
    config_trust::PROBE,
    copy_out::PROBE,
    run_folder::PROBE,
    server_limits::PROBE,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_number_of_the_list_has_a_probe() {
        let mut names: Vec<&str> = ALL.iter().map(|probe| probe.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for id in 1..=65u8 {
            assert!(ALL.iter().any(|probe| probe.ids.contains(&id)), "no probe {id}");
        }
    }
}
