# frozen_string_literal: true

require "fileutils"
require "rbconfig"

# Copies this Ruby into a folder that runs anywhere with the same C library, for GPU machines without one:
# ruby bench/gpu/pack_ruby.rb DIRECTORY, then there: DIRECTORY/ruby script.rb
module PackRuby
  # What belongs to every Linux, and must fit its kernel and loader.
  SYSTEM = /\A(linux-vdso|ld-linux|libc\.|libm\.|libdl\.|libpthread\.|librt\.|libgcc_s\.|libstdc\+\+\.)/
  UNNEEDED = %w[bundler bundler.rb rdoc rdoc.rb irb irb.rb debug typeprof rbs].freeze

  module_function

  def pack(directory)
    FileUtils.mkdir_p(%w[bin lib].map { |name| File.join(directory, name) })
    FileUtils.cp(File.realpath(RbConfig.ruby), File.join(directory, "bin", "ruby"))
    copy_library("rubylibdir", directory)
    copy_library("rubyarchdir", directory)
    copy_shared_objects(directory)
    write_launcher(directory)
  end

  def copy_library(key, directory)
    target = File.join(directory, key)
    FileUtils.mkdir_p(target)
    kept = Dir.children(RbConfig::CONFIG.fetch(key)) - UNNEEDED
    # Debian links some of them into its gems.
    kept.each do |name|
      source = File.join(RbConfig::CONFIG.fetch(key), name)
      system("cp", "-rL", source, target, exception: true) if File.exist?(source)
    end
  end

  def copy_shared_objects(directory)
    binaries = [File.join(directory, "bin", "ruby"), *Dir[File.join(directory, "rubyarchdir", "**", "*.so")]]
    needed = IO.popen(["ldd", *binaries], &:read).scan(/^\s+(\S+) => (\S+)/).uniq
    needed.each { |name, path| FileUtils.cp(path, File.join(directory, "lib", name)) unless name.match?(SYSTEM) }
  end

  def write_launcher(directory)
    File.write(File.join(directory, "ruby"), <<~SHELL, perm: 0o755)
      #!/bin/sh
      # CUDA_LIBS may name the folder of CUDA's libraries.
      here=$(dirname "$(readlink -f "$0")")
      LD_LIBRARY_PATH="$here/lib${CUDA_LIBS:+:$CUDA_LIBS}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
      RUBYLIB="${RUBYLIB:+$RUBYLIB:}$here/rubylibdir:$here/rubyarchdir"
      LANG="${LANG:-C.UTF-8}"
      export LD_LIBRARY_PATH RUBYLIB LANG
      exec "$here/bin/ruby" --disable=gems,did_you_mean,error_highlight "$@"
    SHELL
  end
end

PackRuby.pack(File.expand_path(ARGV.fetch(0)))
