# SPDX-License-Identifier: AGPL-3.0-or-later
# Checks of what goes wrong: each failure comes early, with a message that a user can act on.
{
  pkgs,
  chaosTest,
  kernel,
  packages,
  raft,
  root,
}:
let
  inherit (pkgs) lib;
  stages = import ./stages.nix {
    inherit pkgs;
    tools = packages.stages;
  };

  # Builds where the script of `drv` fails with this code and says all of this.
  mustFail =
    name: drv:
    { code, says }:
    pkgs.runCommand "${name}-must-fail"
      (
        (drv.environment or { })
        // {
          inherit (drv) script;
          nativeBuildInputs = drv.programs or [ drv.program ];
          passAsFile = [ "script" ] ++ drv.environment.passAsFile or [ ];
        }
      )
      ''
        code=0
        (export out=$NIX_BUILD_TOP/output; bash -euo pipefail "$scriptPath") >log 2>&1 || code=$?
        cat log
        if [ $code != ${toString code} ]; then
          echo "${name}: it ended with code $code, it must end with ${toString code}" >&2
          exit 1
        fi
        ${lib.concatMapStrings (text: ''
          grep -qF -- ${lib.escapeShellArg text} log || { echo ${lib.escapeShellArg "${name}: it did not say: ${text}"} >&2; exit 1; }
        '') says}
        cp log $out
      '';

  # The boot of explore-raft with one object changed on the way.
  booted = (raft "double_vote" { name = "explore-raft"; stopAfterBugs = 1; expect = "bug"; }).boot;
  changed =
    name: how:
    pkgs.runCommand name { nativeBuildInputs = [ pkgs.jq ]; } ''
      cp -r --no-preserve=mode ${booted} $out
      digest() { jq -r --arg role "$1" '.outputs[] | select(.role == $role) | .object.digest' $out/descriptor.json; }
      object() { echo $out/objects/$(digest $1 | cut -c1-2)/$(digest $1)$2; }
      ${how}
    '';
  explore =
    previous:
    stages.after previous {
      name = "explore";
      title = "explore-round";
      tool = "chaos-explore-round";
      arguments = "--branches 1";
    };
  flip = ''
    flip() { # file, offset
      local byte=$(od -An -tu1 -j $2 -N 1 $1)
      printf "\\x$(printf %02x $((byte ^ 1)))" | dd of=$1 bs=1 seek=$2 conv=notrunc status=none
    }
  '';

  good = {
    name = "good";
    initrd = packages.initrds.initrd-raft;
  };
  # Arguments, and what must be said about them.
  wrong = [
    {
      given = good // { rouns = 3; };
      says = "there is no argument rouns; did you mean rounds?";
    }
    {
      given = { name = "x"; };
      says = "neither initrd nor nodes is given";
    }
    {
      given = { initrd = packages.initrds.initrd-raft; };
      says = "name is missing";
    }
    {
      given = good // { vms = 33; };
      says = "vms is 33: it must be a whole number between 1 and 32";
    }
    {
      given = good // { horizon = "5 seconds"; };
      says = "horizon is \"5 seconds\": it must be a length of time with its unit";
    }
    {
      given = good // { latency = "1us"; };
      says = "latency is \"1us\"";
    }
    {
      given = good // { expect = "buug"; };
      says = "expect is \"buug\": it must be one of no-bug, bug";
    }
    {
      given = good // { engine = "kmv"; };
      says = "did you mean kvm?";
    }
    {
      given = good // { cpus = 2; };
      says = "kernel = mkChaosKernel { smp = true; virtioNet = true; }";
    }
    {
      given = good // { branches = 2; shards = 4; };
      says = "each shard needs a branch at least";
    }
    {
      given = good // { shards = 2; stopAfterBugs = 1; };
      says = "shards do not know each other's bugs";
    }
    {
      given = good // { shards = 128; rounds = 4; branches = 128; };
      says = "at most 250 are followed";
    }
    {
      given = good // { coverageOf = ./.; coverageRange = "401000-402000"; };
      says = "coverageOf and coverageRange are both given";
    }
    {
      given = good // { nodes = [ ]; };
      says = "initrd and nodes are both given";
    }
    {
      given = { name = "x"; nodes = [ { workload = ./.; appendd = ""; } ]; };
      says = "nodes is a list of 1: it must be a list, each entry of which must be a set { workload = PROGRAM;";
    }
    {
      given = good // { faults = [ { time = "6s"; fault = "vm_kill"; } ]; };
      says = "faults has vm_kill at 6s, after the horizon of 5s";
    }
    {
      given = "good";
      says = "it was given \"good\": it takes a set";
    }
  ];
  unsaid = lib.concatMap (
    case:
    let
      said = chaosTest.problems case.given;
    in
    lib.optional (!(lib.any (lib.hasInfix case.says) said)) "expected: ${case.says}; said: ${lib.concatStringsSep " / " said}"
  ) wrong;
  # Arguments that the page does not name.
  page = lib.readFile (root + "/docs/nix.md");
  undocumented = lib.filter (name: !(lib.hasInfix "`${name}`" page)) (lib.attrNames chaosTest.accepted);
  kvm = chaosTest.mkChaosTest (good // { engine = "kvm"; });
in
{
  inherit mustFail;
}
// {
  checks = {
    damaged-snapshot = mustFail "damaged-snapshot" (explore (
      changed "damaged-snapshot-store" ''
        ${flip}
        flip $(object snapshot .zst) 200
      ''
    )) {
      code = 3;
      says = [ "damaged" "stage explore-round failed with code 3: an input is unreadable, damaged or breaks its contract" ];
    };
    damaged-descriptor = mustFail "damaged-descriptor" (explore (
      changed "damaged-descriptor-store" ''
        jq -c '.outputs |= map(if .role == "snapshot" then .object.digest = ("0" * 64) else . end)' $out/descriptor.json >changed
        mv changed $out/descriptor.json
      ''
    )) {
      code = 3;
      says = [ "is in none of the stores read" ];
    };
    # A document that says what its contract does not allow.
    contract-breach = mustFail "contract-breach" (explore (
      changed "contract-breach-store" ''
        jq -c '.outputs[0].role = "Not A Name"' $out/descriptor.json >changed
        mv changed $out/descriptor.json
      ''
    )) {
      code = 3;
      says = [ "role" "Not A Name" "stage explore-round failed with code 3: an input is unreadable, damaged or breaks its contract" ];
    };
    no-stage = mustFail "no-stage" (explore (pkgs.runCommand "no-stage" { } "mkdir $out")) {
      code = 3;
      says = [ "is no output of a stage: it holds no descriptor.json" ];
    };
    missing-kernel = mustFail "missing-kernel" (chaosTest.mkChaosTest (good // {
      name = "missing-kernel";
      kernel = pkgs.runCommand "no-kernel" { } "mkdir $out";
    })).boot {
      code = 3;
      says = [ "holds no vmlinux: give what mkChaosKernel makes, or an image" ];
    };
    silent-guest = mustFail "silent-guest" (chaosTest.mkChaosTest (good // {
      name = "silent-guest";
      initrd = packages.initrd.mkChaosInitrd {
        name = "initrd-silent";
        workload = packages.guests.guest-loops;
      };
      vms = 1;
      setupLimit = "1s";
    })).boot {
      code = 5;
      says = [ "stage boot failed with code 5" ];
    };
    wrong-arguments =
      if unsaid != [ ] then
        throw "wrong-arguments:\n  ${lib.concatStringsSep "\n  " unsaid}"
      else if undocumented != [ ] then
        throw "docs/nix.md does not name the arguments ${lib.concatStringsSep ", " undocumented}"
      else if kvm.boot.requiredSystemFeatures or [ ] != [ "kvm" ] then
        throw "engine = \"kvm\" must ask for the system feature kvm"
      else
        pkgs.runCommand "wrong-arguments" { } "echo ${toString (lib.length wrong)} > $out";
  };
}
