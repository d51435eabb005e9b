# frozen_string_literal: true

module Candle
  # Kernels beside their reference, and long work, panics and figures on demand, so that what is promised of results,
  # interrupts, errors and memory can be shown on any installation.
  #
  # @api private
  module SelfTest
    # @!method self.kernels(device)
    #   Compares every kernel of a device with a plain reference in double precision.
    #   @param device [Device, String]
    #   @return [Array<Array(String, Integer, Array<String>)>] the kernel, how many cases it has, and those that failed
    #   @raise [DeviceError] when there is no such device

    # @!method self.work(seconds)
    #   Computes for a while without the GVL, as every call into a model does.
    #   @param seconds [Float]
    #   @return [Integer]

    # @!method self.panic_holding_gvl(message)
    #   @param message [String]
    #   @raise [InternalError] always

    # @!method self.panic_without_gvl(message)
    #   @param message [String]
    #   @raise [InternalError] always

    # @!method self.kept_bytes
    #   @return [Integer] how many freed bytes the allocator keeps for the next tensors
  end
end
