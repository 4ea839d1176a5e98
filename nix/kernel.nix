# SPDX-License-Identifier: AGPL-3.0-or-later
# Guest kernels: guest/kernel/build in a sandbox. The result holds vmlinux, bzImage and config.
{
  pkgs,
  platform,
  root,
}:
let
  inherit (pkgs) lib;
  check = import ./arguments.nix { inherit lib; };
  builder = builtins.path {
    path = root + "/guest/kernel";
    name = "chaoscontrol-kernel";
  };

  accepted = {
    name = check.text // {
      default = null;
      help = "name of the derivation; else it follows from the switches";
    };
    virtioNet = check.switch // {
      default = false;
      help = "whether the kernel has a driver for the virtio network card: clusters need it";
    };
    kcov = check.switch // {
      default = false;
      help = "whether the kernel records its own coverage (KCOV)";
    };
    smp = check.switch // {
      default = false;
      help = "whether the kernel runs on several CPUs";
    };
    legacy = check.switch // {
      default = false;
      help = "no ACPI and the PIC only, for chaos-boot --legacy";
    };
    extraConfig = check.lines // {
      default = "";
      help = "more lines of kernel configuration, for instance \"CONFIG_XFS_FS=y\"; the last one of an option wins";
    };
    source = check.path // {
      default = null;
      help = "another kernel's source: a tarball or a tree";
    };
  };

  mkChaosKernel =
    given:
    let
      args = check.apply "mkChaosKernel" accepted given;
      name =
        if args.name != null then
          args.name
        else
          lib.optionalString args.kcov "kcov-" + lib.optionalString args.smp "smp-" + lib.optionalString args.virtioNet "net-" + "vmlinux";
      fragments =
        lib.optional (!args.virtioNet) "no-net.config"
        ++ lib.optional args.kcov "kcov.config"
        ++ lib.optional args.smp "smp.config"
        ++ lib.optional args.legacy "pic.config";
    in
    pkgs.stdenv.mkDerivation {
      inherit name;
      inherit (args) extraConfig;
      passAsFile = [ "extraConfig" ];
      # The kernel knows best what it is compiled with.
      hardeningDisable = [ "all" ];
      nativeBuildInputs = [
        pkgs.bc
        pkgs.bison
        pkgs.flex
        pkgs.perl
        pkgs.util-linux
      ];
      buildInputs = platform.kernelLibraries;
      passthru.isChaosKernel = true;
      meta = {
        description = "Linux for guests of ChaosControl";
        license = lib.licenses.gpl2Only or { spdxId = "GPL-2.0-only"; };
        platforms = [ "x86_64-linux" ];
      };
      buildCommand = ''
        cd $NIX_BUILD_TOP
        source=${if args.source == null then pkgs.linux_6_12.src else args.source}
        ${platform.prepareKernelSource}
        cp -r ${builder} kernel
        export XDG_CACHE_HOME=$NIX_BUILD_TOP/cache
        vmlinux=$(bash kernel/build --source "$source" -j "$NIX_BUILD_CORES" \
          ${lib.concatMapStrings (fragment: "--config kernel/${fragment} ") fragments} --config "$extraConfigPath" --print-path)
        mkdir -p $out
        cp "$(dirname "$vmlinux")"/{vmlinux,bzImage,config} $out/
      '';
    };
in
{
  inherit accepted mkChaosKernel;
  packages = {
    vmlinux = mkChaosKernel { };
    net-vmlinux = mkChaosKernel { virtioNet = true; };
    kcov-vmlinux = mkChaosKernel { kcov = true; };
    kcov-net-vmlinux = mkChaosKernel {
      kcov = true;
      virtioNet = true;
    };
  };
}
