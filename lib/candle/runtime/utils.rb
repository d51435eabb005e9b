# frozen_string_literal: true

module Candle
  # Small facts about the running process.
  module Utils
    # @return [Integer] how many threads work on one native call
    def self.get_num_threads # rubocop:disable Naming/AccessorMethodName
      _thread_count
    end

    # @return [Boolean] the same as {BuildInfo.cuda_available?}
    def self.cuda_is_available
      Deprecation.warn("Utils.cuda_is_available", "BuildInfo.cuda_available?")
      BuildInfo.cuda_available?
    end

    # @return [Boolean] the same as {BuildInfo.mkl_available?}
    def self.has_mkl # rubocop:disable Naming/PredicateName
      Deprecation.warn("Utils.has_mkl", "BuildInfo.mkl_available?")
      BuildInfo.mkl_available?
    end

    # @return [Boolean] the same as {BuildInfo.accelerate_available?}
    def self.has_accelerate # rubocop:disable Naming/PredicateName
      Deprecation.warn("Utils.has_accelerate", "BuildInfo.accelerate_available?")
      BuildInfo.accelerate_available?
    end

    # @api private
    # @param count [Integer] at least 1
    def self.set_num_threads(count) # rubocop:disable Naming/AccessorMethodName
      _set_thread_count(count)
    end

    # Lets all threads share so many arenas of glibc's allocator, unless the environment says how many. What one thread
    # leaves free in an arena of its own serves no other, and a process with many threads grows by it.
    #
    # @api private
    # @param count [Integer]
    # @return [Boolean] whether it was done
    def self.limit_arenas(count)
      return false if ENV.key?("MALLOC_ARENA_MAX") || ENV["GLIBC_TUNABLES"].to_s.include?("arena_max")

      _limit_arenas(count)
    end

    # Writes a file as a whole: beside its place, synced to the disk and renamed. The file keeps its mode and owner, and
    # a symbolic link is followed.
    #
    # @api private
    # @param path [String]
    # @param what [String] its name in an error
    # @param content [String]
    # @raise [InvalidInputError] when it can't be written, and for what is not a regular file
    def self.replace_file(path, what, content)
      _replace_file(path, what, content)
    end
  end

  class << self
    # @return [Integer] how many threads work on one native call
    def num_threads
      Utils.get_num_threads
    end

    # @param count [Integer] threads for the native calls that start from now on, at least 1
    def num_threads=(count)
      raise ArgumentError, "num_threads takes an Integer, not #{Arguments.shown(count)}" unless count.is_a?(Integer)
      raise ArgumentError, "num_threads must be at least 1, not #{count}" unless count.positive?

      Utils.set_num_threads(count)
    end
  end
end
