# frozen_string_literal: true

module Candle
  # Chooses between the builds of the native extension. The CUDA one can only be loaded where NVIDIA's libraries are, so
  # it stands beside the one that every machine can load, and is tried first.
  #
  # @api private
  module Native
    CUDA = "candle/cuda/candle"
    # A precompiled gem carries one extension per Ruby version, a compiled one just its own.
    PLAIN = ["candle/#{RUBY_VERSION[/\A\d+\.\d+/]}/candle", "candle/candle"].freeze
    INSTALL = "gem install red-candle --platform ruby -- --features cuda"
    private_constant :CUDA, :PLAIN, :INSTALL

    class << self
      # @return [String] `"cuda"` or `"cpu"`, the build that was loaded
      attr_reader :build

      # @return [String, nil] why the CUDA build, which is installed, is not the one loaded
      attr_reader :problem

      # @return [Hash] classes by name that Ruby has not completed yet
      def halves
        @halves ||= {}
      end

      # Gives a class with a native half its name, for the file that goes on with it.
      #
      # @param name [Symbol]
      # @return [Module]
      def complete(name)
        Candle.const_set(name, halves.fetch(name))
      end

      # @param wanted [String, nil] `"cpu"` or `"cuda"`; nil is CUDA where it loads
      # @return [String] what {build} answers
      # @raise [DeviceError] when the wanted build can't be loaded
      def load(wanted)
        case wanted&.downcase
        when nil, "" then load_cuda || load_plain
        when "cpu" then leave_cuda || load_plain
        when "cuda" then load_cuda || raise(DeviceError, "CANDLE_BUILD=cuda is set, but #{problem || lack}")
        else raise DeviceError, "CANDLE_BUILD must be \"cpu\" or \"cuda\", not #{wanted.inspect}"
        end
      end

      private

      # A library that fails to load has defined nothing yet.
      def load_cuda
        return unless installed?(CUDA)

        require CUDA
        @build = "cuda"
      rescue LoadError => e
        @problem = "the CUDA build of red-candle can't be loaded: #{reason(e.message)}"
        nil
      end

      def leave_cuda
        return unless installed?(CUDA)

        @problem = "CANDLE_BUILD=cpu leaves the CUDA build of red-candle unused. Unset it to use CUDA"
        nil
      end

      def load_plain
        require(PLAIN.find { |feature| installed?(feature) } || PLAIN.last)
        @build = "cpu"
      end

      def installed?(feature)
        !$LOAD_PATH.resolve_feature_path(feature).nil?
      end

      def lack
        "red-candle was built without CUDA. Reinstall with: #{INSTALL}"
      end

      def reason(message)
        library = message[/(lib[\w.+-]+): cannot open shared object file/, 1]
        case library
        when nil then message.lines.first.to_s.strip
        when /\Alibcuda\.so/ then "no NVIDIA driver found (#{library} is missing). Install the driver"
        else
          "#{library} is missing. Install the libraries of the CUDA toolkit that red-candle was built with, or name " \
          "their folder in LD_LIBRARY_PATH"
        end
      end
    end

    load(ENV.fetch("CANDLE_BUILD", nil))
  end
end
