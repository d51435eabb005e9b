# frozen_string_literal: true

module Candle
  # What this build of the native extension can do.
  module BuildInfo
    class << self
      # @return [Boolean] whether CUDA was compiled in
      def cuda_available?
        facts.fetch(:cuda)
      end

      # @return [Boolean] whether cuDNN was compiled in
      def cudnn_available?
        facts.fetch(:cudnn)
      end

      # @return [Boolean] whether Metal was compiled in
      def metal_available?
        facts.fetch(:metal)
      end

      # @return [Boolean] whether Intel MKL was compiled in
      def mkl_available?
        facts.fetch(:mkl)
      end

      # @return [Boolean] whether Apple's Accelerate was compiled in
      def accelerate_available?
        facts.fetch(:accelerate)
      end

      # @return [String] which build of the extension is loaded: `"cuda"`, or `"cpu"`, which has Metal on macOS
      def build
        Native.build
      end

      # @return [String, nil] why a CUDA build that is installed is not the one loaded
      def cuda_problem
        Native.problem
      end

      # @return [Array<String>] the names of what was compiled in
      def features
        %i[cuda cudnn metal mkl accelerate].select { |name| facts.fetch(name) }.map(&:to_s)
      end

      # @return [Array<String>] the backends that were compiled in, best first: `"Metal"`, `"CUDA"`, `"CPU"`
      def available_backends
        [("Metal" if metal_available?), ("CUDA" if cuda_available?), "CPU"].compact
      end

      # @example
      #   Candle::BuildInfo.summary[:default_device] # => "cpu"
      #   Candle::BuildInfo.summary["available_backends"] # => ["CPU"]
      #
      # @return [Hash] everything above in one, with the version and the devices of this machine; Strings and Symbols
      #   find the same
      def summary
        EitherKeys.of(
          facts.merge(
            version: VERSION, build: build, cuda_problem: cuda_problem, default_device: Device.best.to_s,
            available_devices: Device.available_devices, available_backends: available_backends,
            threads: Utils.get_num_threads, **availability
          )
        )
      end

      private

      def facts
        @facts ||= _facts.freeze
      end

      def availability
        %i[cuda cudnn metal mkl accelerate].to_h { |name| [:"#{name}_available", facts.fetch(name)] }
      end
    end
  end

  # @example
  #   Candle.build_info["cuda_available"] == Candle::BuildInfo.cuda_available? # => true
  #
  # @return [Hash] see {BuildInfo.summary}
  def self.build_info
    BuildInfo.summary
  end
end
