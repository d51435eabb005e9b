# frozen_string_literal: true

require "etc"
require "fileutils"
require "rbconfig"
require_relative "peers"

module Bench
  # llama.cpp's library for images, mtmd, in the version of the llama.cpp that {Peers} builds, and linked to that build:
  # its kernels run with the same flags. llama-cpp-python finds it by the environment.
  module Mtmd
    # Of the source package, mtmd itself and the hashes that it takes of images.
    PARTS = %w[tools/mtmd/*.cpp tools/mtmd/models/*.cpp vendor/hash/*.cpp vendor/hash/{xxhash,sha1,sha256}/*.c].freeze
    # Programs.
    LEFT_OUT = %w[mtmd-cli.cpp deprecation-warning.cpp].freeze
    HEADERS = %w[include ggml/include tools/mtmd vendor vendor/hash].freeze
    FLAGS = %w[-O3 -DNDEBUG -fPIC -w -DLLAMA_BUILD -DLLAMA_SHARED].freeze
    # Sources of C; one more stands in a namespace of C++.
    C_SOURCES = %w[xxhash.c sha256.c].freeze

    module_function

    # @return [Hash{String => String}] the environment in which llama-cpp-python finds the library
    def environment
      { "MTMD_CPP_LIB" => directory }
    end

    # @return [String]
    def directory
      File.join(Tasks::Build.cache_directory, "bench", "mtmd")
    end

    # Builds the library unless it is there; {Peers.prepare} comes before.
    #
    # @return [String] its path
    def prepare(output: $stdout)
      return library if ready?

      FileUtils.mkdir_p(directory)
      Peers.step(output, "source of #{package}", Peers.python, "-m", "pip", "download", *Peers.quiet, "--no-deps",
                 "--no-binary", "llama-cpp-python", "--dest", directory, package)
      Peers.step(output, "unpacking", "tar", "xzf", archive, "-C", directory)
      Peers.step(output, "mtmd", RbConfig.ruby, __FILE__)
      File.write(stamp, wanted)
      library
    end

    # @return [Boolean]
    def ready?
      File.exist?(library) && File.exist?(stamp) && File.read(stamp) == wanted
    end

    # Compiles and links what {.prepare} has unpacked.
    def build
      sources = PARTS.flat_map { |pattern| Dir[File.join(root, pattern)] }
      sources.reject! { |path| LEFT_OUT.include?(File.basename(path)) }
      objects = File.join(directory, "objects")
      FileUtils.mkdir_p(objects)
      waiting = Queue.new(sources.each_with_index.to_a).close
      Array.new(Etc.nprocessors) { Thread.new { compile(*waiting.pop, objects) until waiting.empty? } }.each(&:value)
      run(compiler, "-shared", "-o", library, *Dir[File.join(objects, "*.o")], "-L#{llama}", "-lllama", "-lggml",
          "-lggml-base", "-Wl,-rpath,#{llama}", "-pthread")
    end

    def compile(source, number, objects)
      includes = HEADERS.map { |folder| "-I#{File.join(root, folder)}" }
      language = C_SOURCES.include?(File.basename(source)) ? %w[-x c] : %w[-x c++ -std=c++17]
      run(compiler, *FLAGS, *includes, *language, "-c", source, "-o", File.join(objects, "#{number}.o"))
    end

    def run(*command)
      system(*command, exception: true)
    end

    def compiler
      ENV.fetch("CXX", "c++")
    end

    def library
      File.join(directory, Tasks::Build.darwin? ? "libmtmd.dylib" : "libmtmd.so")
    end

    # Where the package has llama.cpp's libraries.
    def llama
      Dir[File.join(Peers.directory, "lib", "python*", "site-packages", "llama_cpp", "lib")].first
    end

    def package
      Peers.packages.find { |line| line.start_with?("llama-cpp-python") }
    end

    def archive
      File.join(directory, "#{package.sub("==", "-").tr("-", "_").sub(/_(?=[\d.]+\z)/, "-")}.tar.gz")
    end

    def root
      File.join(archive.delete_suffix(".tar.gz"), "vendor", "llama.cpp")
    end

    def stamp
      File.join(directory, "built")
    end

    def wanted
      [Peers.wanted, *FLAGS, *HEADERS, *PARTS, *LEFT_OUT].join(" ")
    end
  end
end

Bench::Mtmd.build if $PROGRAM_NAME == __FILE__
