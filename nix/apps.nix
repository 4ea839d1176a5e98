# SPDX-License-Identifier: AGPL-3.0-or-later
# What `nix run` starts: every tool by its name, and the main job as one command.
{
  pkgs,
  packages,
  kernel,
  ...
}:
let
  inherit (pkgs) lib;
  program = name: package: {
    type = "app";
    program = "${package}/bin/${name}";
  };
  # A campaign as one command: `usage` for --help, `defaults` as assignments, what each of `options` sets from its value ($2), and
  # the arguments of the `boot`. Options that all have are here.
  campaign =
    {
      name,
      usage,
      defaults,
      options,
      boot,
    }:
    let
      all = options // {
        output = "output=$2";
        bug = "bug=$2";
        vms = "vms=$2";
        seed = "seed=$2";
        branches = "branches=$2";
        jobs = ''jobs=(--jobs "$2")'';
      };
      names = map (option: "--${option}") (lib.attrNames all);
    in
    pkgs.writeShellApplication {
      inherit name;
      runtimeInputs = [ packages.packages.chaos-tools ];
      text = ''
        usage() {
          cat <<'TEXT'
        ${usage}TEXT
        }
        output=${name} jobs=() ${defaults}
        while [ $# -gt 0 ]; do
          case $1 in
            --help | -h) usage; exit 0 ;;
            ${lib.concatStringsSep " | " names})
              [ $# -ge 2 ] || { echo "${name}: $1 needs a value" >&2; exit 2; }
              case $1 in
                ${lib.concatStringsSep "\n        " (lib.mapAttrsToList (option: set: "--${option}) ${set} ;;") all)}
              esac
              shift ;;
            *) usage >&2; echo "${name}: unknown argument: $1" >&2; exit 2 ;;
          esac
          shift
        done
        mkdir -p "$output"
        cd "$output"
        export CHAOS_STORE=$PWD/store
        chaos-boot --kernel ${kernel.packages.net-vmlinux}/vmlinux --vms "$vms" --seed "$seed" ${boot} | tee boot.json \
          | chaos-explore-round --branches "$branches" --stop-after-bugs 1 "''${jobs[@]}" | tee round.json \
          | chaos-minimize "''${jobs[@]}" | tee minimal.json \
          | chaos-reproduce | tee reproduced.json | chaos-verdict | tee verdict.json | chaos-receipt >receipt.json
        chaos-report --in receipt.json >report.html
        chaos-show minimal.json
        chaos-show verdict.json
        echo "report:  $PWD/report.html"
        echo "receipt: $PWD/receipt.json"
      '';
    };
  exploreRaft = campaign {
    name = "explore-raft";
    usage = ''
      usage: explore-raft [options]

      Boots three nodes of a Raft with a planted bug, explores schedules of faults until the bug shows, shrinks the schedule to the
      faults that matter, replays it, and writes the receipt. Ends with what was found, for people.

        --output DIR          where the store and the descriptors go (default explore-raft)
        --bug NAME            double_vote (default), fig8_commit, skip_truncate, accept_stale_term, leader_no_stepdown,
                              premature_commit, or none
        --extra-cmdline TEXT  appended to every kernel command line, in the place of raft_bug=NAME
        --vms N               nodes (default 3)
        --seed N              seed of everything random (default 42)
        --branches N          branches at most (default 64)
        --jobs N              branches at a time (default: the number of cores)

      exit codes: those of the stage that failed; 0 also when a bug is found
    '';
    defaults = ''bug=double_vote cmdline="" vms=3 seed=42 branches=64'';
    options.extra-cmdline = "cmdline=$2";
    boot = ''--initrd ${packages.initrds.initrd-raft} --disk-mib 16 --append "''${cmdline:-raft_bug=$bug}"'';
  };
  # The dry run of the first workload: what it registers, and what is seen of it without faults.
  localReport = pkgs.writeShellApplication {
    name = "rust-workload-local-report";
    text = ''
      exec ${packages.guests.guest-rust-workload}/bin/chaos-rust-workload "$@"
    '';
  };
  exploreRustWorkload = campaign {
    name = "explore-rust-workload";
    usage = ''
      usage: explore-rust-workload [options]

      Boots three nodes of the first workload, which chaos-scaffold makes a project of, with its planted bug, explores schedules of faults
      until the bug shows, shrinks the schedule, replays it, and writes the receipt. Ends with what was found, for people.

        --output DIR    where the store and the descriptors go (default explore-rust-workload)
        --initrd FILE   another workload (packed with chaos-initrd)
        --bug NAME      no_memory (default) or none: bug=NAME on every kernel command line
        --vms N         nodes (default 3)
        --seed N        seed of everything random (default 1)
        --branches N    branches at most (default 128)
        --jobs N        branches at a time (default: the number of cores)

      exit codes: those of the stage that failed; 0 also when a bug is found
    '';
    defaults = "initrd=${packages.initrds.initrd-rust-workload} bug=no_memory vms=3 seed=1 branches=128";
    options.initrd = ''initrd=$(realpath "$2")'';
    boot = ''--initrd "$initrd" --disk-mib 0 --append "bug=$bug"'';
  };
in
lib.mapAttrs program (lib.filterAttrs (name: _: name == "chaos-contract" || packages.tools ? ${name}) packages.packages)
// {
  default = program "explore-raft" exploreRaft;
  explore-raft = program "explore-raft" exploreRaft;
  explore-rust-workload = program "explore-rust-workload" exploreRustWorkload;
  rust-workload-local-report = program "rust-workload-local-report" localReport;
}
