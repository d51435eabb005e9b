# frozen_string_literal: true

require "rbconfig"

module Tasks
  module Metal
    # What macOS and Ruby provide, as far as the extension asks for it.
    module MacosSymbols
      # A library of macOS: where its stub lies, what it is called at run time, which names of its public
      # interface we import.
      Library = Struct.new(:stub, :install_name, :symbols) do
        # @return [String] a text-based stub that a linker accepts for the library
        def text_stub
          <<~STUB
            --- !tapi-tbd
            tbd-version: 4
            targets: [ arm64-macos, x86_64-macos ]
            install-name: '#{install_name}'
            current-version: 1
            exports:
              - targets: [ arm64-macos, x86_64-macos ]
                symbols: [ #{symbols.join(", ")} ]
            ...
          STUB
        end
      end

      def self.framework(name, version, symbols)
        path = "System/Library/Frameworks/#{name}.framework"
        Library.new("#{path}/#{name}.tbd", "/#{path}/Versions/#{version}/#{name}", symbols)
      end

      OBJECTIVE_C = %w[
        _class_addIvar _class_addMethod _class_addProtocol _class_conformsToProtocol _class_copyIvarList
        _class_copyMethodList _class_copyProtocolList _class_getClassMethod _class_getInstanceMethod
        _class_getInstanceSize _class_getInstanceVariable _class_getName _class_getSuperclass _class_isMetaClass
        _class_respondsToSelector _ivar_getName _ivar_getOffset _ivar_getTypeEncoding _method_copyArgumentType
        _method_copyReturnType _method_exchangeImplementations _method_getImplementation _method_getName
        _method_getNumberOfArguments _method_getTypeEncoding _method_setImplementation _objc_alloc _objc_alloc_init
        _objc_allocateClassPair _objc_allocateProtocol _objc_autorelease _objc_autoreleasePoolPop
        _objc_autoreleasePoolPush _objc_begin_catch _objc_copyClassList _objc_copyProtocolList _objc_copyWeak
        _objc_destroyWeak _objc_disposeClassPair _objc_end_catch _objc_exception_rethrow _objc_exception_throw
        _objc_getClass _objc_getProtocol _objc_initWeak _objc_loadWeakRetained _objc_moveWeak _objc_msgSend
        _objc_msgSendSuper _objc_opt_class _objc_opt_isKindOfClass _objc_opt_respondsToSelector
        _objc_registerClassPair _objc_registerProtocol _objc_release _objc_retain _objc_retainAutorelease
        _objc_retainAutoreleaseReturnValue _objc_retainAutoreleasedReturnValue _objc_sync_enter _objc_sync_exit
        _object_getClass _object_getIvar _object_setClass _object_setIvar _protocol_addMethodDescription
        _protocol_addProtocol _protocol_copyMethodDescriptionList _protocol_copyProtocolList
        _protocol_getMethodDescription _protocol_getName _protocol_isEqual _sel_getName _sel_registerName
      ].freeze

      ACCELERATE = %w[
        _cblas_dgemm _cblas_sgemm _dgemm_ _hgemm_ _sgemm_ _vDSP_vadd _vDSP_vaddD _vDSP_vdiv _vDSP_vdivD _vDSP_vmax
        _vDSP_vmaxD _vDSP_vmin _vDSP_vminD _vDSP_vmul _vDSP_vmulD _vDSP_vsub _vDSP_vsubD _vvcos _vvcosf _vvexp
        _vvexpf _vvlog _vvlogf _vvsin _vvsinf _vvsqrt _vvsqrtf _vvtanh _vvtanhf
      ].freeze

      LIBRARIES = [
        framework("Metal", "A", %w[_MTLCopyAllDevices _MTLCreateSystemDefaultDevice]),
        framework("Foundation", "C", %w[_NSLocalizedDescriptionKey]),
        framework("CoreFoundation", "A", %w[_CFGetRetainCount _CFRelease _CFRetain _CFURLGetString]),
        framework("Accelerate", "A", ACCELERATE),
        Library.new("usr/lib/libobjc.tbd", "/usr/lib/libobjc.A.dylib", OBJECTIVE_C)
      ].freeze

      module_function

      # @param library [String] the file name of the library a symbol is imported from
      # @param zig_folder [String] where zig's own list of the C library's symbols lies
      # @return [Boolean] whether it has the symbol
      def provided?(library, symbol, zig_folder)
        case library
        when "the process" then ruby_symbols.include?(symbol.delete_prefix("_"))
        when "libSystem.B.dylib" then system_symbols(zig_folder).include?(symbol)
        else LIBRARIES.any? { |known| File.basename(known.install_name) == library && known.symbols.include?(symbol) }
        end
      end

      # What this machine's Ruby exports: its C interface is the same on macOS.
      def ruby_symbols
        @ruby_symbols ||= begin
          folders = RbConfig::CONFIG.values_at("libdir", "archlibdir").compact
          library = folders.map { |folder| File.join(folder, RbConfig::CONFIG["LIBRUBY_SO"].to_s) }
                           .find { |path| File.file?(path) } || RbConfig.ruby
          lines = IO.popen(["nm", "-D", "--defined-only", library], &:readlines)
          lines.to_h { |line| [line.split.last[/[^@]+/], true] }
        end
      end

      def system_symbols(zig_folder)
        @system_symbols ||= File.read(File.join(zig_folder, "lib/libc/darwin/libSystem.tbd"))
                                .scan(/[\w$.]+/).to_h { |name| [name, true] }
      end
    end
  end
end
