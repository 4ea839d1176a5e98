# SPDX-License-Identifier: AGPL-3.0-or-later
# Writes an attribute set as TOML, as far as Cargo manifests need it: tables inside the top level are inline tables.
let
  inherit (builtins)
    attrNames
    concatStringsSep
    isAttrs
    isBool
    isInt
    isList
    isString
    map
    match
    toJSON
    typeOf
    ;
  key = name: if match "[A-Za-z0-9_-]+" name != null then name else toJSON name;
  value =
    x:
    if isBool x || isInt x || isString x then
      toJSON x # JSON's texts and numbers are TOML's.
    else if isList x then
      "[${concatStringsSep ", " (map value x)}]"
    else if isAttrs x then
      "{ ${concatStringsSep ", " (map (name: "${key name} = ${value x.${name}}") (attrNames x))} }"
    else
      throw "toml: a ${typeOf x} cannot be written";
in
attrs: concatStringsSep "" (map (name: "${key name} = ${value attrs.${name}}\n") (attrNames attrs))
